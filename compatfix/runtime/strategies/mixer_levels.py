"""Mixer levels: one forward, in which each mixer's own forward is called once per depth of the tree.

The nodes of a depth are batch rows of length 1, each continuing from its parent's state, so only the mixer's
single-token path is used: it is right even where a multi-token forward drops the state. Memory: 1 + N states a layer.
The mixer's projections from its input and to its output run once over all nodes (see per_token.py).

Under a memory limit that this exceeds, each mixer goes through the tree depth first, in steps of a few rows (see
schedules.py), and no state outlives the forward: a commit takes the mixers through the accepted path once more, from
their recorded inputs (N x hidden per layer), one token at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..mixers import Forward, Mixer, mentions
from ..refusal import RuntimeRefusal
from ..schedules import Schedule, by_levels, depth_first, width_within
from ..slots import state_slots
from ..trees import Tree
from ..withheld import intercepted
from .base import Block, Facts, Record, Strategy
from .per_token import PerToken

States = dict[tuple[int, str], list[Tensor]]  # by slot and step: (nodes of that step, …)


class MixerLevels(Strategy):
    """`frugal`: always as under the tightest limit, one row a step; the start-up measurement runs both ways."""

    name = "mixer levels"

    def __init__(self, frugal: bool = False) -> None:
        self._frugal = frugal

    def forms(self, facts: Facts) -> Sequence[Strategy]:
        return (self,) if facts.state_limit is None else (self, MixerLevels(frugal=True))

    def obstacle(self, facts: Facts) -> str | None:
        if not facts.mixers.stateful:
            return "no module keeps state in the cache"
        if facts.mixers.unexplained:
            layer, name = facts.mixers.unexplained[0]
            return f"{name} of layer {layer} is changed by no module with a layer_idx"
        return None

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        tree, width = block.tree, self._width(facts, block)
        schedule = by_levels(tree) if width is None else depth_first(tree, width)
        states: States = {}
        inputs: list[Inputs] = []
        makers = {
            mixer.module: _in_steps(mixer, block, schedule, None if width else states, inputs)
            for mixer in facts.mixers.found
        }
        with intercepted(makers, facts.mixers.found, block.cache):
            output = block.forward(facts)
        check_calls([taken.mixer for taken in inputs], facts)
        if width is None:
            return output, LevelRecord(block.start, tree, schedule, states)
        return output, InputsRecord(block.start, tree, inputs)

    def _width(self, facts: Facts, block: Block) -> int | None:
        """Rows of a step when states are not kept; None where there is no limit or all states fit."""
        limit, tree = facts.state_limit, block.tree
        if self._frugal:
            return 1
        if limit is None:
            return None
        of_layer = [sum(slot.tensor.nbytes for slot in mixer.slots(block.cache)) for mixer in facts.mixers.found]
        largest = max(of_layer)
        if tree.size * sum(of_layer) + max(len(level) for level in tree.levels) * largest <= limit:
            return None
        width = width_within(tree, limit // largest) if largest else 1
        if not width:
            depths = len(tree.levels)
            raise RuntimeRefusal(
                f"a tree of {depths} depths needs {(depths + 1) * largest} bytes for the states of one layer "
                f"({depths + 1} of {largest} bytes) and the limit is {limit}: raise memory_limit "
                "(COMPATFIX_STATE_BYTES), or draft fewer tokens ahead"
            )
        return width


@dataclass(frozen=True)
class Inputs:
    """What a mixer was called with over all nodes; the cache's place is marked, so that the record does not hold it."""

    mixer: Mixer
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def of(mixer: Mixer, cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
        return Inputs(
            mixer,
            tuple(_CACHE if value is cache else value for value in args),
            {name: _CACHE if value is cache else value for name, value in kwargs.items()},
        )

    def rows(self, nodes: Tensor, tree: Tree, cache: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for `nodes`, as batch rows of one token."""
        given = [cache if value is _CACHE else _rows(value, nodes, tree) for value in self.args]
        named = {name: cache if value is _CACHE else _rows(value, nodes, tree) for name, value in self.kwargs.items()}
        named.update({name: None for name in named if name == "attention_mask"})
        return given, named


class LevelRecord(Record):
    """A record with the states of every node, by step of the schedule."""

    def __init__(
        self, start: int, tree: Tree, schedule: Schedule, states: Mapping[tuple[int, str], Sequence[Tensor]]
    ) -> None:
        super().__init__(start, tree)
        self.schedule = schedule
        self.states = states

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        step, row = self.schedule.place(path[-1])
        for slot in state_slots(cache):
            states = self.states.get(slot.label)
            if states is not None:
                # Cloned: layers update their states in place, and the other nodes' must be freed.
                slot.put(states[step][row : row + 1].clone())


class InputsRecord(Record):
    """A record with the mixers' inputs, from which the states at the end of a path are computed when they are kept."""

    def __init__(self, start: int, tree: Tree, inputs: Sequence[Inputs]) -> None:
        super().__init__(start, tree)
        self.inputs = tuple(inputs)

    def keep(self, cache: Any, path: Sequence[int]) -> None:
        # First, so that an exception in a mixer leaves the block pending.
        states = self._along(cache, path) if path else {}
        super().keep(cache, path)
        for slot in state_slots(cache):
            if slot.label in states:
                slot.put(states[slot.label])

    def _along(self, cache: Any, path: Sequence[int]) -> dict[tuple[int, str], Tensor]:
        found: dict[tuple[int, str], Tensor] = {}
        # Tensors made in inference mode may be updated in that mode only.
        inference = any(slot.tensor.is_inference() for slot in state_slots(cache))
        with torch.inference_mode(inference), torch.no_grad():
            for inputs in self.inputs:
                slots = inputs.mixer.slots(cache)
                committed = [slot.tensor for slot in slots]
                nodes = self.tree.rows(path, committed[0].device)
                try:
                    for slot in slots:
                        slot.put(slot.tensor.clone())
                    for at in range(len(path)):
                        given, named = inputs.rows(nodes[at : at + 1], self.tree, cache)
                        inputs.mixer.module.forward(*given, **named)
                    found.update({slot.label: slot.tensor for slot in slots})
                finally:
                    for slot, tensor in zip(slots, committed, strict=True):
                        slot.put(tensor)
        return found


def check_calls(calls: Sequence[Mixer], facts: Facts) -> None:
    """Every mixer must have passed through its replacement, once."""
    if sorted(mixer.layer for mixer in calls) != sorted(mixer.layer for mixer in facts.mixers.found):
        raise RuntimeRefusal(
            f"{len(calls)} of {len(facts.mixers.found)} stateful mixers went through the verification; "
            "the others run code that it does not reach"
        )


def _in_steps(mixer: Mixer, block: Block, schedule: Schedule, kept: States | None, calls: list[Inputs]) -> Any:
    """The maker of a forward that takes the mixer through the schedule; the states of all nodes go to `kept`."""
    cache, tree = block.cache, block.tree

    def make(original: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not mentions(cache, args, kwargs):
                return original(*args, **kwargs)
            inputs = Inputs.of(mixer, cache, args, kwargs)
            calls.append(inputs)
            slots = mixer.slots(cache)
            committed = [slot.tensor for slot in slots]
            device = committed[0].device
            of_steps: list[list[Tensor] | None] = []
            outputs: list[Tensor] = []
            linears = PerToken(mixer.module)
            try:
                with linears.watching():
                    for step, (nodes, rows) in zip(schedule.steps, schedule.on(device), strict=True):
                        before = of_steps[step.parent] if step.parent >= 0 else None
                        for i, slot in enumerate(slots):
                            # A step's own copy: what the mixer writes is what is kept, and nothing is written twice.
                            slot.put(committed[i].clone() if before is None else before[i].index_select(0, rows))
                        given, named = inputs.rows(nodes, tree, cache)
                        linears.begin(nodes, _pairs([*args, *kwargs.values()], [*given, *named.values()]))
                        result = original(*given, **named)
                        own = linears.end(result[0] if isinstance(result, tuple) else result)
                        if own is not None:
                            outputs.append(own)
                        of_steps.append([slot.tensor for slot in slots])
                        if kept is None:
                            for index in step.spent:
                                of_steps[index] = None
                    rest = linears.finish()
            finally:
                for slot, tensor in zip(slots, committed, strict=True):
                    slot.put(tensor)
            if kept is not None:
                kept.update({slot.label: [step[i] for step in of_steps if step] for i, slot in enumerate(slots)})
            joined = torch.cat(outputs if rest is None else [*outputs, rest])
            joined = joined.index_select(0, schedule.order(joined.device)).transpose(0, 1)
            return (joined, *result[1:]) if isinstance(result, tuple) else joined

        return forward

    return make


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


class _Cache:
    """Stands for the cache in recorded arguments."""


_CACHE = _Cache()
