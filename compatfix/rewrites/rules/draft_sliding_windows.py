from __future__ import annotations

import ast

from compatfix.rewrites.code import Code
from compatfix.rewrites.drafting import draft_of_call
from compatfix.rewrites.flow.evaluate import RUNTIME
from compatfix.rewrites.rule import Case, Outcome, Rule

_GIVEN = "noise_embedding=noise, target_hidden=context, position_ids=at"


class DraftSlidingWindows(Rule):
    """Calls a draft whose sliding layers get no mask.

    ## What it does
    Finds calls of a draft and makes them through the runtime's `draft_forward`, a transparent forward that gives every
    layer the mask that the draft's config asks for: its window, and nothing behind a query where the layer is causal.

    ## Why it breaks
    Published drafts build no mask. Under sdpa and eager their sliding layers see the whole context and the whole block
    in both directions; 4 of 5 layers of the Qwen3.6-27B draft have a window of 2048. Beyond it the draft sees more than
    it was trained with, and acceptance falls. The emitted text stays right.

    ## Example
        hidden = draft(noise_embedding=noise, target_hidden=context, position_ids=positions, past_key_values=cache)
    ## Use instead
        hidden = draft_forward(
            draft, noise_embedding=noise, target_hidden=context, position_ids=positions, past_key_values=cache
        )

    ## Fix safety
    Safe: without sliding or causal layers in the config it is the same call. With them the drafted tokens change, as
    the config's `layer_types`, `sliding_window` and `is_causal` say (without `is_causal`, sliding layers are causal, as
    in release 0.1.0 of DFlash); what is emitted does not. A tree that compares positions with a window of its own, or
    passes a mask, stays as it is.
    """

    code = "CF408"
    name = "draft-sliding-windows"
    trigger = (b"noise_embedding",)
    VALID = (
        f"from compatfix_runtime import draft_forward\nh = draft_forward(draft, {_GIVEN})",
        f"h = draft({_GIVEN}, attention_mask=mask)",
        "h = draft(noise_embedding=noise, target_hidden=context)",
        "h = drafts[0](noise_embedding=noise, target_hidden=context, position_ids=at)",
        "out = target(inputs_embeds=noise_embedding, position_ids=at)",
        f"def mask(q, k, sliding_window):\n    return q - k < sliding_window\nh = draft({_GIVEN})",
    )
    INVALID = (
        Case(f"h = draft({_GIVEN})", f"h = draft_forward(draft, {_GIVEN})"),
        Case(
            f"h = net.small.forward({_GIVEN}, use_cache=True)",
            f"h = draft_forward(net.small, {_GIVEN}, use_cache=True)",
        ),
        Case(f"h = draft({_GIVEN}, attention_mask=None)", f"h = draft_forward(draft, {_GIVEN}, attention_mask=None)"),
        Case(
            "h = draft(\n    noise_embedding=noise,\n    target_hidden=context,\n    position_ids=at,\n)",
            "h = draft_forward(\n    draft,\n    noise_embedding=noise,\n    target_hidden=context,\n"
            "    position_ids=at,\n)",
        ),
        Case(
            f"class Net:\n    def forward(self, noise_embedding, target_hidden, **more):\n        return f(self)\n"
            f"    def run(self, noise, context, at):\n        return self({_GIVEN})",
            f"class Net:\n    def forward(self, noise_embedding, target_hidden, **more):\n        return f(self)\n"
            f"    def run(self, noise, context, at):\n        return draft_forward(self, {_GIVEN})",
        ),
    )

    def __init__(self) -> None:
        self._masks_itself: bool | None = None

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        mask = given.get("attention_mask")
        if not {"noise_embedding", "position_ids"} <= given.keys() or node.args:
            return None
        if mask is not None and not (isinstance(mask, ast.Constant) and mask.value is None):
            return None
        draft = draft_of_call(node, code)
        if draft is None or f"{RUNTIME}.draft_forward" in code.qualified(node.func):
            return None
        if self._masks_itself is None:
            self._masks_itself = _compares_with_a_window(code)
        return None if self._masks_itself else self.call(node, "$draft_forward", draft)


def _compares_with_a_window(code: Code) -> bool:
    """Whether the tree itself decides by a window what is seen."""
    for module in code.flow.project.modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Compare) and any(
                isinstance(side, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for side in node.ops
            ):
                names = {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)}
                if any("window" in name for name in names):
                    return True
    return False
