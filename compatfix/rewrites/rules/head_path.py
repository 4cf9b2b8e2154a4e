from __future__ import annotations

import ast

from compatfix.rewrites.cases import draft, target
from compatfix.rewrites.code import Code
from compatfix.rewrites.drafting import name_of_draft
from compatfix.rewrites.flow.objects import Obj
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed

_HEADS = {"lm_head", "embed_out"}
_PARTS = {"language_model", "text_model", "module"}


class HeadPath(Rule):
    """Runs the target's output head by an attribute path.

    ## What it does
    Finds `target.lm_head(x)` on the output of a draft and calls the runtime's `draft_logits` instead. Where the draft
    has a name there, it is passed too, for the multiplier and the soft-cap that its config may have.

    ## Why it breaks
    18 of 276 classes have no `lm_head`, and in 21 the head's raw output is not what the model calls logits: a scale or
    a soft-cap comes after it. The first raises; the second drafts from other probabilities.

    ## Example
        logits = target.lm_head(draft_hidden)
    ## Use instead
        logits = draft_logits(target, draft_hidden)

    ## Fix safety
    Safe: where the class has a plain head, and the draft's config no such field, the result is the same tensor.
    """

    code = "CF102"
    name = "head-path"
    trigger = tuple(name.encode() for name in sorted(_HEADS))
    VALID = (
        Case("logits = target.get_output_embeddings()(x)", given=target()),
        Case("logits = other.lm_head(x)", given=target()),
        Case("class Net:\n    def forward(self, x):\n        return self.lm_head(x)"),
        Case("weight = target.lm_head.weight", given=target()),
    )
    INVALID = (
        Case("logits = target.lm_head(x)", "logits = draft_logits(target, x)", given=target()),
        Case("p = big.lm_head(hidden[:, 1:])", "p = draft_logits(big, hidden[:, 1:], draft)", given=draft()),
        Case(
            "p = big.lm_head(\n    hidden,  # the block\n)",
            "p = draft_logits(\n    big,\n    hidden,  # the block\n)",
            given=draft(),
        ),
        Case("head = t.lm_head\np = head(x)", "head = t.lm_head\np = draft_logits(t, x)", given=target("t")),
        Case(
            "draft_logits = target.lm_head(x)",
            "draft_logits = compatfix_draft_logits(target, x)",
            given=target(),
        ),
        Case(
            "p = target.lm_head(\n    x,  # the block\n)",
            "p = draft_logits(\n    target,\n    x,  # the block\n)",
            given=target(),
        ),
    )

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        heads = {v for v in code.values(node.func) if v.kind == "field" and v.name in _HEADS}
        owners = {owner for head in heads if (owner := _model(head)) is not None}
        owners = {owner for owner in owners if not any(code.is_own(owner, head.name) for head in heads)}
        targets = owners & code.roles.targets
        if not targets and node.args and code.from_draft(node.args[0]):
            targets = {owner for owner in owners if owner.kind != "instance"} - code.roles.drafts
        if not targets:
            return None
        receiver: ast.expr = node.func
        while isinstance(receiver, ast.Attribute) and not code.values(receiver) & targets:
            receiver = receiver.value
        if code.values(receiver) & targets:
            draft = name_of_draft(node, code) if _is_plain(node) and code.from_draft(node.args[0]) else None
            if draft is not None:
                template = f"$draft_logits({{target}}, {{hidden}}, {draft})"
                return self.replace(node, template, target=receiver, hidden=node.args[0])
            return self.call(node, "$draft_logits", receiver)
        name = code.name_of(targets, node)
        if name is None:
            return Unfixed(node, "no name for the target is in reach here; pass the target in and use draft_logits")
        return self.call(node, "$draft_logits", name)


def _is_plain(node: ast.Call) -> bool:
    """One argument on one line: nothing is lost when the call is written anew."""
    return len(node.args) == 1 and not node.keywords and node.lineno == node.end_lineno


def _model(head: Obj) -> Obj | None:
    here = head.parent
    while here is not None and here.kind == "field" and here.name in _PARTS:
        here = here.parent
    return here
