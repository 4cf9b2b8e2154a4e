"""Gated-delta tree: one forward, in which the gated delta rule is solved over the ancestor matrix.

The mixer's own forward runs with two of its parts exchanged (see exchange.py), the causal convolution and the chunked
rule. A commit rebuilds the state from the path's
recorded keys, writes and decay, so it needs no second forward and no state per node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..gated_delta_rule import DeltaRecord, state_after, tree_gated_delta
from ..mixers import Mixer, replaced_forwards
from ..refusal import RuntimeRefusal
from ..slots import Slot
from ..trees import Tree
from .base import Block, Facts, Record, Strategy
from .exchange import CONVS, ConvPass, Part, obstacle, over_tree, put_window
from .mixer_levels import check_calls

# What library versions call the chunked rule, as a module global or as an attribute of the mixer.
RULES = ("torch_chunk_gated_delta_rule", "chunk_gated_delta_rule")


class GatedDelta(Strategy):
    name = "gated-delta tree"

    def obstacle(self, facts: Facts) -> str | None:
        return obstacle(facts, [["conv", "recurrent"], ["conv", "ssm"]], [RULES, CONVS])

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        passes: dict[int, LayerPass] = {}
        calls: list[Mixer] = []

        def begin(mixer: Mixer, slots: Sequence[Slot]) -> LayerPass:
            conv, recurrent = _conv_and_recurrent(slots)
            layer_pass = passes[mixer.layer] = LayerPass(block.tree, conv.tensor, recurrent.tensor)
            return layer_pass

        makers = {m.module: over_tree(m, block, calls, partial(begin, m)) for m in facts.mixers.found}
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
            put_window(conv, layer.inputs, self.tree, path[-1])


class LayerPass(ConvPass):
    """One mixer's share of one verify: the exchanged convolution and rule, and what they record."""

    def __init__(self, tree: Tree, window: Tensor, state: Tensor) -> None:
        super().__init__(tree, window)
        self.state = state
        self.deltas: list[DeltaRecord] = []

    def parts(self) -> dict[str, Part]:
        return {**dict.fromkeys(RULES, self.rule), **dict.fromkeys(CONVS, self.conv)}

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


def _conv_and_recurrent(slots: Sequence[Slot]) -> tuple[Slot, Slot]:
    first, second = slots
    return (first, second) if first.name.startswith("conv") else (second, first)


def _l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
