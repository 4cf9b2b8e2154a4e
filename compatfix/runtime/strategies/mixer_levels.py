"""Mixer levels: one forward, in which each mixer's own forward is called once per depth of the tree.

The nodes of a depth are batch rows of length 1, each continuing from its parent's state, so only the mixer's
single-token path is used: it is right even where a multi-token forward drops the state. Memory: 1 + N states a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..mixers import Forward, Mixer, mentions, replaced_forwards
from ..refusal import RuntimeRefusal
from ..trees import Tree
from .base import Block, Facts, Record, StateRecord, Strategy

States = dict[tuple[int, str], Tensor]


class MixerLevels(Strategy):
    name = "mixer levels"

    def obstacle(self, facts: Facts) -> str | None:
        if not facts.mixers.stateful:
            return "no module keeps state in the cache"
        if facts.mixers.unexplained:
            layer, name = facts.mixers.unexplained[0]
            return f"{name} of layer {layer} is changed by no module with a layer_idx"
        return None

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        states: States = {}
        calls: list[Mixer] = []
        makers = {mixer.module: _by_levels(mixer, block, states, calls) for mixer in facts.mixers.found}
        with replaced_forwards(makers):
            output = block.forward(facts)
        check_calls(calls, facts)
        return output, StateRecord(block.start, block.tree, states)


def check_calls(calls: list[Mixer], facts: Facts) -> None:
    """Every mixer must have passed through its replacement, once."""
    if sorted(mixer.layer for mixer in calls) != sorted(mixer.layer for mixer in facts.mixers.found):
        raise RuntimeRefusal(
            f"{len(calls)} of {len(facts.mixers.found)} stateful mixers went through the verification; "
            "the others run code that it does not reach"
        )


def _by_levels(mixer: Mixer, block: Block, states: States, calls: list[Mixer]) -> Any:
    cache, tree = block.cache, block.tree

    def make(original: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not mentions(cache, args, kwargs):
                return original(*args, **kwargs)
            calls.append(mixer)
            slots = mixer.slots(cache)
            committed = [slot.tensor for slot in slots]
            of_nodes: list[Tensor] = []
            outputs: Tensor | None = None
            try:
                device = committed[0].device
                for nodes, parents in tree.steps(device):
                    for i, slot in enumerate(slots):
                        source = committed[i].clone() if parents is None else of_nodes[i].index_select(0, parents)
                        slot.put(source)
                    result = original(
                        *(_rows(value, nodes, tree) for value in args),
                        **{
                            name: None if name == "attention_mask" else _rows(value, nodes, tree)
                            for name, value in kwargs.items()
                        },
                    )
                    rows = result[0] if isinstance(result, tuple) else result
                    if outputs is None:
                        outputs = rows.new_empty(1, tree.size, *rows.shape[2:])
                        of_nodes = [t.new_empty(tree.size, *t.shape[1:]) for t in (slot.tensor for slot in slots)]
                    outputs[0, nodes.to(rows.device)] = rows[:, 0]
                    for kept, slot in zip(of_nodes, slots, strict=True):
                        kept[nodes] = slot.tensor
            finally:
                for slot, tensor in zip(slots, committed, strict=True):
                    slot.put(tensor)
            states.update({slot.label: kept for slot, kept in zip(slots, of_nodes, strict=True)})
            return (outputs, *result[1:]) if isinstance(result, tuple) else outputs

        return forward

    return make


def _rows(value: Any, nodes: Tensor, tree: Tree) -> Any:
    """The part of an argument that belongs to `nodes`, as batch rows of one token; what is not per token, unchanged."""
    if isinstance(value, tuple) and value and all(isinstance(item, Tensor) for item in value):
        return tuple(_rows(item, nodes, tree) for item in value)
    if not isinstance(value, Tensor):
        return value
    nodes = nodes.to(value.device)
    if value.ndim >= 2 and value.shape[:2] == torch.Size((1, tree.size)):
        return value[0].index_select(0, nodes)[:, None]
    if value.ndim == 1 and value.shape[0] == tree.size:
        return value[nodes[:1]]  # a position in the cache, the same for all nodes of a depth
    return value
