"""What an exception of a generation means: its code, where it was, and what to do. Pure.

The runtime refuses at two times. At start-up it says that no strategy fits the target (CF911); in a call it says that
the calls before it do not fit together, which is an exception of the tree like any other (CF910).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.codes import CODES
from compatfix.model import Finding, Location

# What a message of the runtime or the library says is missing, by the rule that writes it.
MISSING = (
    ("CF206", ("tree is still pending", "a tree is pending")),
    ("CF202", ("cannot be rolled back", "no verified block is pending")),
)


def raised(mode: str, error: Mapping[str, Any]) -> Finding:
    """The finding for one exception; `mode` names what was run."""
    place = error.get("place") or {}
    code = error.get("code") or ("CF911" if error.get("start_up") else "CF910")
    what = error["message"] if error.get("code") else f"{error['type']}: {error['message']}"
    message = f"{mode}: {what}{_where_it_was(error)}"
    location = Location(place["file"], place.get("line")) if place else None
    return Finding(code, "error", "measured", message, location, _advice(error), details={"mode": mode, **error})


def state_text(state: Mapping[str, Any]) -> str:
    """The first wrong tensor of the target's cache, in words."""
    kind = f" ({state['kind']})" if state.get("kind") else ""
    size = state.get("note") or f"off by {state['difference']:.2g}"
    return f"first wrong state: layer {state['layer']}{kind}, {state['tensor']}, after round {state['round']}, {size}"


def _advice(error: Mapping[str, Any]) -> str | None:
    """A refused call: the runtime is in the tree, and the call that must come before is not."""
    if not error.get("refused") or error.get("start_up"):
        return None
    code = next((code for code, hints in MISSING if any(hint in error["message"] for hint in hints)), None)
    if code is None:
        return None
    return f"the call that belongs to it is missing; {code} ({CODES[code].name}) writes it: select that rule too"


def _where_it_was(error: Mapping[str, Any]) -> str:
    """How far the text had come: prompt, token, both candidates, margin, and the state that was left."""
    at, layer = error.get("at"), error.get("layer")
    by = layer and _layer(layer)
    if not at:
        return f" ({by})" if by else ""
    rival = "the draft has" if at["drafted"] else "ahead of"
    text = f" (prompt {error.get('prompt')}, at token {at['index']}: {at['expected']} due, {rival} {at['got']}, "
    text += f"margin {at['margin']:.3g}"
    state = at.get("state")
    return "; ".join(filter(None, (text, by, state and state_text(state)))) + ")"


def _layer(layer: Mapping[str, Any]) -> str:
    of = f" of the {layer['of']}" if layer.get("of") else ""
    return f"raised by layer {layer['layer']}{of} ({layer['class']}.{layer['function']})"
