"""In which order a mixer is taken through a tree, and how many states that keeps alive.

Each step gives the mixer some nodes of one depth as batch rows. By levels there is one step per depth. Depth first,
with a bound on the rows of a step, the states of a step are needed only until its last descendant is through, so that
few are alive at once whatever the size of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .trees import Tree


@dataclass(frozen=True)
class Step:
    """Nodes of one depth that a mixer gets at once."""

    nodes: tuple[int, ...]
    parent: int  # the step that left their parents' states; -1 for the root's, which are the committed ones
    rows: tuple[int, ...]  # where in that step each node's parent lies
    spent: tuple[int, ...]  # steps whose states nothing later needs


@dataclass(frozen=True)
class Schedule:
    """Steps through all nodes of a tree, parents before children."""

    steps: tuple[Step, ...]
    _by_device: dict[torch.device, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def on(self, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """For each step its nodes and the rows of their parents, as index tensors: one transfer for all of them."""
        sizes = [len(step.nodes) for step in self.steps]
        nodes, rows = self._indices(device).unbind()
        return list(zip(torch.split(nodes, sizes), torch.split(rows, sizes), strict=True))

    def order(self, device: torch.device) -> Tensor:
        """(N,): where each node lies when the steps are laid one behind the other."""
        return self._indices(device)[0].argsort()

    def place(self, node: int) -> tuple[int, int]:
        """The step that holds a node, and its row in it."""
        at = next(index for index, step in enumerate(self.steps) if node in step.nodes)
        return at, self.steps[at].nodes.index(node)

    def _indices(self, device: torch.device) -> Tensor:
        """(2, N): the nodes, and the rows of their parents, in the order of the steps."""
        if device not in self._by_device:
            nodes = [node for step in self.steps for node in step.nodes]
            rows = [row for step in self.steps for row in step.rows]
            self._by_device[device] = torch.tensor([nodes, rows], device=device)
        return self._by_device[device]


def by_levels(tree: Tree) -> Schedule:
    """One step per depth. All states are kept."""
    place = {node: row for level in tree.levels for row, node in enumerate(level)}
    return Schedule(
        tuple(
            Step(level, depth - 1, tuple(place.get(tree.parents[node], 0) for node in level), ())
            for depth, level in enumerate(tree.levels)
        )
    )


def depth_first(tree: Tree, width: int) -> Schedule:
    """Steps of at most `width` nodes, each followed by all that descends from it."""
    children: list[list[int]] = [[] for _ in tree.parents]
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            children[parent].append(node)
    steps: list[Step] = []
    # Steps to be taken, the next one last: nodes, the parents' step, the parents' rows, and what is spent afterwards.
    waiting: list[tuple[tuple[int, ...], int, tuple[int, ...], tuple[int, ...]]] = [((0,), -1, (0,), ())]
    while waiting:
        nodes, parent, rows, spent = waiting.pop()
        index = len(steps)
        below = [(child, row) for row, node in enumerate(nodes) for child in children[node]]
        chunks = [below[at : at + width] for at in range(0, len(below), width)]
        # A step's states go with its last descendant, which may be the last one of its ancestors too.
        steps.append(Step(nodes, parent, rows, () if chunks else (*spent, index)))
        for number, chunk in reversed(list(enumerate(chunks))):
            last = (*spent, index) if number == len(chunks) - 1 else ()
            waiting.append((tuple(child for child, _ in chunk), index, tuple(row for _, row in chunk), last))
    return Schedule(tuple(steps))


def states_alive(tree: Tree, width: int) -> int:
    """How many states `depth_first` keeps alive at most: a step of each depth, and the copy that is being updated."""
    widths = [min(width, len(level)) for level in tree.levels]
    return sum(widths) + max(widths)


def width_within(tree: Tree, states: int) -> int:
    """The largest width of `depth_first` that keeps at most `states` alive; 0 where not even single nodes do."""
    least, most = 0, max(len(level) for level in tree.levels)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if states_alive(tree, middle) <= states else (least, middle - 1)
    return least
