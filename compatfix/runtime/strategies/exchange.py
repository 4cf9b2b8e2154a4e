"""Running a mixer's own forward over a tree, with some of its parts exchanged.

The forward runs on a copy that sees other names (see mixers.with_globals) and on a cache that stores nothing; nothing
shared is changed. The causal convolution is the part that all such mixers have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..gated_delta_rule import tree_conv
from ..mixers import Forward, Mixer, StandIn, innermost, mentions, with_globals
from ..slots import Slot
from ..trees import Tree
from .base import Block, Facts

# What library versions call the convolution, as a module global or as an attribute of the mixer.
CONVS = ("causal_conv1d_fn",)

Part = Callable[..., Any]

_STATES = {"conv": "conv window", "recurrent": "recurrent state", "ssm": "recurrent state"}


class ConvPass:
    """One mixer's share of one verify: the exchanged convolution, and the inputs that it records."""

    def __init__(self, tree: Tree, window: Tensor) -> None:
        self.tree = tree
        self.window = window
        self.inputs: list[Tensor] = []  # (1, C, L + N) each: the committed window, then the inputs of the nodes

    def parts(self) -> dict[str, Part]:
        """What takes the place of which of the mixer's functions."""
        return dict.fromkeys(CONVS, self.conv)

    def conv(self, *args: Any, **kwargs: Any) -> Tensor:
        """In place of causal_conv1d_fn(x, weight, bias, activation=…)."""
        named = {**dict(zip(("x", "weight", "bias"), args, strict=False)), **kwargs}
        x: Tensor = named["x"] if "x" in named else named["hidden_states"]
        weight: Tensor = named["weight"]
        if x.shape[-1] == self.tree.size:  # the library did not prepend the committed window
            x = torch.cat([self.window.to(x.dtype), x], dim=-1)
        self.inputs.append(x)
        activation = named.get("activation")
        windows = self.tree.windows(weight.shape[-1], x.shape[-1] - self.tree.size, x.device)
        return tree_conv(x, weight, named.get("bias"), ACT2FN[activation] if activation else None, windows)


def obstacle(facts: Facts, kinds: Sequence[Sequence[str]], parts: Sequence[Sequence[str]]) -> str | None:
    """Why the mixers cannot be run so: each must keep states of one of `kinds`, and call one of each of `parts`."""
    if not facts.mixers.found:
        return "no module keeps state in the cache"
    if facts.mixers.unexplained:
        layer, name = facts.mixers.unexplained[0]
        return f"{name} of layer {layer} is changed by no module with a layer_idx"
    for mixer in facts.mixers.found:
        reason = _obstacle(mixer, kinds, parts)
        if reason:
            return f"{type(mixer.module).__name__} of layer {mixer.layer}: {reason}"
    return None


def over_tree(mixer: Mixer, block: Block, calls: list[Mixer], begin: Callable[[Sequence[Slot]], ConvPass]) -> Any:
    """The maker of a forward that runs under the parts of a pass, begun anew from the mixer's slots at each call."""
    cache = block.cache

    def make(original: Forward) -> Forward:
        function: Any = getattr(original, "__func__", None)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not mentions(cache, args, kwargs):
                return original(*args, **kwargs)
            calls.append(mixer)
            slots = mixer.slots(cache)
            committed = [slot.tensor for slot in slots]
            layer_pass = begin(slots)
            frozen = _Frozen(cache, layer_pass.window)
            parts = layer_pass.parts()
            # Older versions keep the functions as attributes of the mixer.
            attributes = {name: part for name, part in parts.items() if hasattr(mixer.module, name)}
            try:
                return with_globals(function, parts)(
                    StandIn(mixer.module, attributes),
                    *(frozen if value is cache else value for value in args),
                    **{
                        name: None if name == "attention_mask" else frozen if value is cache else value
                        for name, value in kwargs.items()
                    },
                )
            finally:
                # Versions without update methods assign the states themselves.
                for slot, tensor in zip(slots, committed, strict=True):
                    slot.put(tensor)

        return forward

    return make


def put_window(slot: Slot, inputs: Tensor, tree: Tree, node: int) -> None:
    """The conv window after `node`, from the recorded inputs (1, C, L + N)."""
    window = tree.windows(slot.tensor.shape[-1], inputs.shape[-1] - tree.size, inputs.device)[node]
    slot.put(inputs.index_select(-1, window).to(slot.tensor.dtype))


class _Frozen:
    """A cache that hands out what a mixer asks for and stores nothing."""

    def __init__(self, cache: Any, window: Tensor) -> None:
        self._cache = cache
        self._window = window

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update_conv_state(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.cat([self._window, inputs.to(self._window.dtype)], dim=-1)

    def update_recurrent_state(self, state: Tensor, *_: Any, **__: Any) -> Tensor:
        return state


def _obstacle(mixer: Mixer, kinds: Sequence[Sequence[str]], parts: Sequence[Sequence[str]]) -> str | None:
    kept = sorted(name.split("_")[0] for name in mixer.names)
    if kept not in [list(kind) for kind in kinds]:
        return f"keeps {', '.join(mixer.names)}, not one {' and one '.join(_STATES[kind] for kind in kinds[0])}"
    forward = _plain_forward(mixer.module)
    function = innermost(forward)
    if function is None or getattr(forward, "__self__", None) is not mixer.module:
        return "its forward has been replaced and cannot be read"
    for names in parts:
        if not any(name in function.__code__.co_names for name in names):
            return f"its forward calls no {names[-1]}"
    try:
        with_globals(getattr(forward, "__func__"), {})  # noqa: B009 - a bound method, checked above
    except TypeError as error:
        return str(error)
    return None


def _plain_forward(module: nn.Module) -> Forward:
    forward = module.__dict__.get("_old_forward") if "_hf_hook" in module.__dict__ else None
    result: Forward = forward if forward is not None else module.forward
    return result
