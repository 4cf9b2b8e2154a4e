"""Gated-delta tree: one forward, in which the gated delta rule is solved over the ancestor matrix.

The mixer's own forward runs with two of its parts exchanged, the causal convolution and the chunked rule, on a copy
that sees other names (see mixers.with_globals); nothing shared is changed. A commit rebuilds the state from the path's
recorded keys, writes and decay, so it needs no second forward and no state per node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..gated_delta_rule import DeltaRecord, state_after, tree_conv, tree_gated_delta
from ..mixers import Forward, Mixer, StandIn, innermost, mentions, replaced_forwards, with_globals
from ..refusal import RuntimeRefusal
from ..slots import Slot
from ..trees import Tree
from .base import Block, Facts, Record, Strategy
from .mixer_levels import check_calls

# What library versions call the chunked rule and the convolution, as module globals or as attributes of the mixer.
RULES = ("torch_chunk_gated_delta_rule", "chunk_gated_delta_rule")
CONVS = ("causal_conv1d_fn",)


class GatedDelta(Strategy):
    name = "gated-delta tree"

    def obstacle(self, facts: Facts) -> str | None:
        if not facts.mixers.found:
            return "no module keeps state in the cache"
        if facts.mixers.unexplained:
            layer, name = facts.mixers.unexplained[0]
            return f"{name} of layer {layer} is changed by no module with a layer_idx"
        for mixer in facts.mixers.found:
            reason = _obstacle(mixer)
            if reason:
                return f"{type(mixer.module).__name__} of layer {mixer.layer}: {reason}"
        return None

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        passes: dict[int, LayerPass] = {}
        calls: list[Mixer] = []
        makers = {mixer.module: _over_tree(mixer, block, passes, calls) for mixer in facts.mixers.found}
        with replaced_forwards(makers):
            output = block.forward(facts)
        check_calls(calls, facts)
        records = {layer: layer_pass.finish() for layer, layer_pass in passes.items()}
        return output, GatedDeltaRecord(block.start, block.tree, facts.mixers.found, records)


@dataclass(frozen=True)
class LayerRecord:
    delta: DeltaRecord
    inputs: Tensor  # (1, C, L + N): the committed conv window, then the inputs of the nodes


class GatedDeltaRecord(Record):
    def __init__(self, start: int, tree: Tree, mixers: Sequence[Mixer], layers: dict[int, LayerRecord]) -> None:
        super().__init__(start, tree)
        self.mixers = tuple(mixers)
        self.layers = layers

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        for mixer in self.mixers:
            layer = self.layers[mixer.layer]
            conv, recurrent = _conv_and_recurrent(mixer.slots(cache))
            recurrent.put(state_after(layer.delta, path).to(recurrent.tensor.dtype))
            width = conv.tensor.shape[-1]
            offset = layer.inputs.shape[-1] - self.tree.size
            window = self.tree.windows(width, offset, layer.inputs.device)[path[-1]]
            conv.put(layer.inputs.index_select(-1, window).to(conv.tensor.dtype))


class LayerPass:
    """One mixer's share of one verify: the exchanged parts, and what they record."""

    def __init__(self, tree: Tree, conv: Slot, recurrent: Slot) -> None:
        self.tree = tree
        self.window = conv.tensor
        self.state = recurrent.tensor
        self.inputs: list[Tensor] = []
        self.deltas: list[DeltaRecord] = []

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

    def rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """In place of chunk_gated_delta_rule: q, k (1, N, Hk, Dk), v (1, N, Hv, Dv), g, beta (1, N, Hv)."""
        repeats = value.shape[2] // key.shape[2]  # each key head serves that many value heads in a row
        if repeats > 1:
            query, key = query.repeat_interleave(repeats, dim=2), key.repeat_interleave(repeats, dim=2)
        dtype = query.dtype
        q, k, v, log_decay, strength = (t.transpose(1, 2).float().contiguous() for t in (query, key, value, g, beta))
        if use_qk_l2norm_in_kernel:
            q, k = _l2_normalised(q), _l2_normalised(k)
        q = q * q.shape[-1] ** -0.5
        ancestors = self.tree.on(q.device)
        out, record = tree_gated_delta(q, k, v, log_decay, strength, ancestors, self.state.to(q))
        self.deltas.append(record)
        return out.transpose(1, 2).to(dtype).contiguous(), self.state

    def finish(self) -> LayerRecord:
        if len(self.inputs) != 1 or len(self.deltas) != 1:
            raise RuntimeRefusal(
                f"a mixer called its convolution {len(self.inputs)} times and its rule {len(self.deltas)} times; "
                "once was expected"
            )
        return LayerRecord(self.deltas[0], self.inputs[0])


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


def _obstacle(mixer: Mixer) -> str | None:
    kinds = [name.split("_")[0] for name in mixer.names]
    if sorted(kinds) not in (["conv", "recurrent"], ["conv", "ssm"]):
        return f"keeps {', '.join(mixer.names)}, not one conv window and one recurrent state"
    forward = _plain_forward(mixer.module)
    function = innermost(forward)
    if function is None or getattr(forward, "__self__", None) is not mixer.module:
        return "its forward has been replaced and cannot be read"
    for names in (RULES, CONVS):
        if not _used(function.__code__.co_names, names):
            return f"its forward calls no {names[-1]}"
    try:
        with_globals(getattr(forward, "__func__"), {})  # noqa: B009 - a bound method, checked above
    except TypeError as error:
        return str(error)
    return None


def _over_tree(mixer: Mixer, block: Block, passes: dict[int, LayerPass], calls: list[Mixer]) -> Any:
    cache, tree = block.cache, block.tree

    def make(original: Forward) -> Forward:
        function: Any = getattr(original, "__func__", None)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not mentions(cache, args, kwargs):
                return original(*args, **kwargs)
            calls.append(mixer)
            slots = mixer.slots(cache)
            committed = [slot.tensor for slot in slots]
            conv, recurrent = _conv_and_recurrent(slots)
            layer_pass = passes[mixer.layer] = LayerPass(tree, conv, recurrent)
            frozen = _Frozen(cache, layer_pass.window)
            parts: dict[str, Callable[..., Any]] = dict.fromkeys(RULES, layer_pass.rule)
            parts.update(dict.fromkeys(CONVS, layer_pass.conv))
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


def _plain_forward(module: nn.Module) -> Forward:
    forward = module.__dict__.get("_old_forward") if "_hf_hook" in module.__dict__ else None
    result: Forward = forward if forward is not None else module.forward
    return result


def _conv_and_recurrent(slots: Sequence[Slot]) -> tuple[Slot, Slot]:
    first, second = slots
    return (first, second) if first.name.startswith("conv") else (second, first)


def _used(names: Sequence[str], wanted: Sequence[str]) -> bool:
    return any(name in names for name in wanted)


def _l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
