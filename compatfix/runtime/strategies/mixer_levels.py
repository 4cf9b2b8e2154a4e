"""Mixer levels: one forward, in which each mixer's own forward is called once per depth of the tree.

The nodes of a depth are batch rows of length 1, each continuing from its parent's state, so only the mixer's
single-token path is used: it is right even where a multi-token forward drops the state. Memory: 1 + N states a layer.
The mixer's projections from its input and to its output run once over all nodes (see per_token.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..mixers import Forward, Mixer, mentions, replaced_forwards
from ..refusal import RuntimeRefusal
from ..slots import state_slots
from ..trees import Tree
from .base import Block, Facts, Record, Strategy
from .per_token import PerToken

States = dict[tuple[int, str], list[Tensor]]  # by slot and depth: (nodes of that depth, …)


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
        steps = _Steps(block.tree)
        makers = {mixer.module: _by_levels(mixer, block, steps, states, calls) for mixer in facts.mixers.found}
        with replaced_forwards(makers):
            output = block.forward(facts)
        check_calls(calls, facts)
        return output, LevelRecord(block.start, block.tree, states)


class LevelRecord(Record):
    """A record with the states of every node, by depth."""

    def __init__(self, start: int, tree: Tree, states: Mapping[tuple[int, str], Sequence[Tensor]]) -> None:
        super().__init__(start, tree)
        self.states = states

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        depth = self.tree.depths[path[-1]]
        row = self.tree.levels[depth].index(path[-1])
        for slot in state_slots(cache):
            states = self.states.get(slot.label)
            if states is not None:
                # Cloned: layers update their states in place, and the other nodes' must be freed.
                slot.put(states[depth][row : row + 1].clone())


def check_calls(calls: list[Mixer], facts: Facts) -> None:
    """Every mixer must have passed through its replacement, once."""
    if sorted(mixer.layer for mixer in calls) != sorted(mixer.layer for mixer in facts.mixers.found):
        raise RuntimeRefusal(
            f"{len(calls)} of {len(facts.mixers.found)} stateful mixers went through the verification; "
            "the others run code that it does not reach"
        )


def _by_levels(mixer: Mixer, block: Block, steps: _Steps, states: States, calls: list[Mixer]) -> Any:
    cache, tree = block.cache, block.tree

    def make(original: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not mentions(cache, args, kwargs):
                return original(*args, **kwargs)
            calls.append(mixer)
            slots = mixer.slots(cache)
            committed = [slot.tensor for slot in slots]
            of_levels: list[list[Tensor]] = [[] for _ in slots]
            outputs: list[Tensor] = []
            linears = PerToken(mixer.module)
            try:
                with linears.watching():
                    for nodes, parents in steps.on(committed[0].device):
                        for i, slot in enumerate(slots):
                            # A depth's own copy: what the mixer writes is what is kept, and nothing is written twice.
                            last = (
                                committed[i].clone() if parents is None else of_levels[i][-1].index_select(0, parents)
                            )
                            slot.put(last)
                        given = [_rows(value, nodes, tree) for value in args]
                        named = {name: _rows(value, nodes, tree) for name, value in kwargs.items()}
                        named.update({name: None for name in named if name == "attention_mask"})
                        linears.begin(nodes, _pairs([*args, *kwargs.values()], [*given, *named.values()]))
                        result = original(*given, **named)
                        rows = linears.end(result[0] if isinstance(result, tuple) else result)
                        if rows is not None:
                            outputs.append(rows)
                        for kept, slot in zip(of_levels, slots, strict=True):
                            kept.append(slot.tensor)
                    rest = linears.finish()
            finally:
                for slot, tensor in zip(slots, committed, strict=True):
                    slot.put(tensor)
            states.update({slot.label: kept for slot, kept in zip(slots, of_levels, strict=True)})
            joined = torch.cat(outputs if rest is None else [*outputs, rest])
            joined = joined.index_select(0, steps.order(joined.device)).transpose(0, 1)
            return (joined, *result[1:]) if isinstance(result, tuple) else joined

        return forward

    return make


class _Steps:
    """The depths of a tree as index tensors, made once per device."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._by_device: dict[torch.device, list[tuple[Tensor, Tensor | None]]] = {}
        self._orders: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> list[tuple[Tensor, Tensor | None]]:
        """For each depth its nodes, and the rows of their parents in the depth above."""
        if device not in self._by_device:
            place = {node: row for level in self._tree.levels for row, node in enumerate(level)}
            rows = [[place.get(self._tree.parents[node], 0) for node in level] for level in self._tree.levels]
            parents = [torch.tensor(level, device=device) for level in rows]
            nodes = [nodes for nodes, _ in self._tree.steps(device)]
            self._by_device[device] = [(own, parents[depth] if depth else None) for depth, own in enumerate(nodes)]
        return self._by_device[device]

    def order(self, device: torch.device) -> Tensor:
        """(N,): where each node lies in the depths one behind the other."""
        if device not in self._orders:
            behind = torch.tensor([node for level in self._tree.levels for node in level])
            self._orders[device] = behind.argsort().to(device)
        return self._orders[device]


def _pairs(whole: Sequence[Any], rows: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    """The tensors among `rows` that are part of an argument, with that argument."""
    return [
        (part, value)
        for value, part in zip(whole, rows, strict=True)
        if isinstance(part, Tensor) and isinstance(value, Tensor) and part is not value and value.ndim == 3
    ]


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
