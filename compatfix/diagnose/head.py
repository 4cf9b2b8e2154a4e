"""Suspects between the draft's states and its tokens: multipliers and soft-caps of the logits, padded vocabularies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from compatfix.diagnose.pair import Pair, head_of_draft
from compatfix.diagnose.toggle import Suspect, Toggle
from compatfix.runtime.draft_config import NESTED, TEXT, draft_value

CAPS = ("final_logit_softcapping", "logit_softcap", "final_logits_softcap")
FACTORS = ("output_multiplier", "lm_head_multiplier", "logits_scaling", "logit_scale", "output_multiplier_scale")
ORDER = "this moves the order of a tree's nodes; the first token of a position only where rounding makes two equal"


def suspects(pair: Pair) -> list[Suspect]:
    return [_scales(pair), _padding(pair)]


def _scales(pair: Pair) -> Suspect:
    question = f"Are the draft's logits capped and scaled as in its training? ({ORDER})"
    toggles = []
    for holder, whose in ((pair.draft.config, "draft"), (pair.config, "target")):
        for name in CAPS:
            cap = _number(holder, name)
            if cap:
                step = f"apply the {whose}'s {name} to the draft's logits"
                toggles.append(_toggle(pair, f"{whose}'s {name} {cap:g}", step, lambda x, c=cap: c * torch.tanh(x / c)))
        for name in FACTORS:
            factor = _number(holder, name)
            if factor and factor != 1:
                for by, word in ((factor, "times"), (1 / factor, "divided by")):
                    step = f"the draft's logits must be {word} the {whose}'s {name}"
                    toggles.append(
                        _toggle(pair, f"logits {word} the {whose}'s {name} {factor:g}", step, lambda x, b=by: x * b)
                    )
    for name in (*CAPS, *FACTORS):
        if _number(pair.draft.config, name):
            step = f"remove {name} from the draft's config.json"
            around = partial(unsaid, pair.draft, name)
            toggles.append(Toggle(f"without the draft's {name}", step, around=around))
    why = "neither config names a soft-cap or a multiplier of logits"
    if pair.bench.tree.tree is None:
        toggles = [toggle for toggle in toggles if "chain" in toggle.modes]
        why = "no tree, whose order they move"
    return Suspect("draft's logits", question, "CF951", tuple(toggles), reason=why)


def _number(config: Any, name: str) -> float | None:
    value = draft_value(config, name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@contextmanager
def unsaid(draft: Any, name: str) -> Iterator[None]:
    """The draft's config does not name it; patched trees read it there, and so does what they call."""
    own = draft.config
    changed = copy.deepcopy(own)
    text = getattr(changed, TEXT, None)
    for holder in (changed, text, getattr(changed, NESTED, None), getattr(text, NESTED, None)):
        if isinstance(holder, dict):
            holder.pop(name, None)
        elif hasattr(holder, name):
            setattr(holder, name, None)
    draft.config = changed
    try:
        yield
    finally:
        draft.config = own


def _toggle(pair: Pair, name: str, step: str, change: Any) -> Toggle:
    return Toggle(
        name, step, around=lambda: head_of_draft(pair, lambda states, logits: change(logits)), modes=("tree",)
    )


def _padding(pair: Pair) -> Suspect:
    question = "Does the draft lose tokens to rows of the head that no token of the tokenizer has?"
    rows = int(pair.head_weight.shape[0])
    if pair.tokenizer is None:
        return Suspect("vocabulary padding", question, "CF953", unmeasured="the target's directory has no tokenizer")
    known = len(pair.tokenizer)
    if rows <= known:
        return Suspect("vocabulary padding", question, "CF953", reason=f"the head has {rows} rows for {known} tokens")

    def hidden(states: Tensor, logits: Tensor) -> Tensor:
        changed = logits.clone()
        changed[..., known:] = torch.finfo(logits.dtype).min
        return changed

    name, step = f"rows from {known} on hidden", f"mask the draft's logits from row {known} on before they are ranked"
    both = Toggle(
        f"{name}, for the target too",
        f"mask logits from row {known} on, for target and draft",
        around=lambda: head_of_draft(pair, hidden, target_too=True),
        own_text=True,
    )
    draft = Toggle(name, step, around=lambda: head_of_draft(pair, hidden))
    return Suspect("vocabulary padding", question, "CF953", (draft, both))
