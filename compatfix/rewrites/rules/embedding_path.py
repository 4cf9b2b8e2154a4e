from __future__ import annotations

import ast

from compatfix.rewrites.cases import draft, target
from compatfix.rewrites.code import Code
from compatfix.rewrites.drafting import name_of_draft
from compatfix.rewrites.flow.objects import Obj
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed

_PARTS = {"model", "language_model", "text_model", "transformer", "base_model", "decoder", "backbone", "module"}
_EMBEDDINGS = {"embed_tokens", "wte", "word_embeddings", "embed_in"}


class EmbeddingPath(Rule):
    """Takes the target's input embeddings by an attribute path.

    ## What it does
    Finds `target.model.embed_tokens` and the like on a target, and asks the runtime instead. Where a draft with a name
    takes what they give, it is passed too: its config may ask for raw rows times a scale.

    ## Why it breaks
    `model.embed_tokens` exists in 140 of 276 classes of transformers 5.24. Classes with a vision tower keep it under
    `model.language_model`, others under names of their own: an AttributeError at the first draft.

    ## Example
        noise = target.model.embed_tokens(block_ids)
    ## Use instead
        noise = input_embeddings(target)(block_ids)

    ## Fix safety
    Safe: every class answers `get_input_embeddings`, which the runtime uses; without a scale in the draft's config the
    module is the same.
    """

    code = "CF101"
    name = "embedding-path"
    trigger = tuple(name.encode() for name in sorted(_EMBEDDINGS))
    VALID = (
        Case("noise = target.get_input_embeddings()(ids)", given=target()),
        Case("noise = other.model.embed_tokens(ids)", given=target()),
        Case("class Net:\n    def forward(self, ids):\n        return self.embed_tokens(ids)"),
        Case("target.model.embed_tokens = patched", given=target()),
    )
    INVALID = (
        Case("noise = target.model.embed_tokens(ids)", "noise = input_embeddings(target)(ids)", given=target()),
        Case("e = t.model.language_model.embed_tokens", "e = input_embeddings(t)", given=target("t")),
        Case("e = t.language_model.model.embed_tokens.weight", "e = input_embeddings(t).weight", given=target("t")),
        Case(
            "inner = t.model\ne = inner.embed_tokens(ids)",
            "inner = t.model\ne = input_embeddings(t)(ids)",
            given=target("t"),
        ),
        Case(
            "draft(noise_embedding=big.model.embed_tokens(ids), target_hidden=h)",
            "draft(noise_embedding=input_embeddings(big, draft)(ids), target_hidden=h)",
        ),
        Case(
            "def embed(m, ids):\n    return m.model.embed_tokens(ids)\nnoise = embed(target, ids)",
            "def embed(m, ids):\n    return input_embeddings(m)(ids)\nnoise = embed(target, ids)",
            given=target() + draft(),
        ),
    )

    def visit_attribute(self, node: ast.Attribute, code: Code) -> Outcome:
        if node.attr not in _EMBEDDINGS or not code.is_loaded(node):
            return None
        owners = {
            owner
            for value in code.values(node.value)
            if (owner := _model(value)) is not None and not _is_own(value, node.attr, code)
        }
        targets = owners & code.roles.targets or self._by_use(node, owners, code)
        if not targets:
            return None
        receiver: ast.expr = node.value
        while isinstance(receiver, ast.Attribute) and not code.values(receiver) & targets:
            receiver = receiver.value
        if code.values(receiver) & targets:
            draft = name_of_draft(node, code) if _feeds_draft(node, code) else None
            template = "$input_embeddings({target})" if draft is None else f"$input_embeddings({{target}}, {draft})"
            return self.replace(node, template, target=receiver)
        name = code.name_of(targets, node)
        if name is None:
            return Unfixed(node, "no name for the target is in reach here; pass the target in and use input_embeddings")
        return self.replace(node, f"$input_embeddings({name})")

    @staticmethod
    def _by_use(node: ast.Attribute, owners: set[Obj], code: Code) -> set[Obj]:
        """The owner is a target too where what its embeddings give is what a draft takes."""
        strangers = {owner for owner in owners if owner.kind != "instance"} - code.roles.drafts
        return strangers if owners and _feeds_draft(node, code) else set()


def _feeds_draft(node: ast.Attribute, code: Code) -> bool:
    """Whether what these embeddings give is what a draft takes."""
    call = code.parent(node)
    site = code.site(call) if isinstance(call, ast.Call) and call.func is node else None
    return site is not None and code.feeds_draft(site.result)


def _is_own(value: Obj, attribute: str, code: Code) -> bool:
    """The first step from the model is one that a class of the tree defines for itself."""
    *steps, owner = value.chain()
    return code.is_own(owner, steps[-1].name if steps else attribute)


def _model(value: Obj) -> Obj | None:
    """The model that a part such as `model.language_model` belongs to: the first owner that is no part itself."""
    here: Obj | None = value
    while here is not None and here.kind == "field" and here.name in _PARTS:
        here = here.parent
    return here
