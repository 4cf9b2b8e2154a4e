"""The shape of a block of tokens: which node follows which. A chain is the tree of one path."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from .refusal import RuntimeRefusal

# What can be wrong with a matrix of which node sees which, in the order in which it is told.
MALFORMED = (
    "a node does not see itself",
    "a node sees a later one; nodes must follow their ancestors",
    "more than one root; every node must see the block's first token",
    "not transitive; a node must see exactly what its parent sees",
)


@dataclass(frozen=True)
class Tree:
    """Nodes in topological order, node 0 the root; `parents[0]` is -1."""

    parents: tuple[int, ...]
    _by_device: dict[tuple[object, ...], Tensor] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def chain(size: int) -> Tree:
        return Tree(tuple(range(-1, size - 1)))

    @staticmethod
    def from_visibility(visible: Tensor) -> Tree:
        """Reads the tree from an (N, N) bool matrix, row i true at the nodes that node i sees."""
        parents, malformed = inspected(visible)
        return Tree.seen(visible, parents, torch.cat([parents, malformed.to(parents.dtype)]).tolist())

    @staticmethod
    def seen(visible: Tensor, parents: Tensor, told: Sequence[int]) -> Tree:
        """The tree of `visible`, given what `inspected` found and, told to the host, both of that: N + 4 numbers.

        Refuses what is malformed. `visible` is kept and must not be written to.
        """
        for wrong, name in zip(told[visible.shape[0] :], MALFORMED, strict=True):
            if wrong:
                raise RuntimeRefusal(f"malformed tree mask: {name}")
        tree = Tree(tuple(told[: visible.shape[0]]))
        # Just checked to be what would be built from the parents; other index tensors follow without a transfer.
        tree._by_device.update({("ancestors", visible.device): visible, ("parents", visible.device): parents})
        return tree

    @property
    def size(self) -> int:
        return len(self.parents)

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, self.size - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each depth."""
        levels: list[list[int]] = [[] for _ in range(max(self.depths) + 1)]
        for node, depth in enumerate(self.depths):
            levels[depth].append(node)
        return tuple(tuple(level) for level in levels)

    @property
    def ancestors(self) -> Tensor:
        """(N, N) bool, row i true at i and its ancestors."""
        return self.on(torch.device("cpu"))

    def on(self, device: torch.device) -> Tensor:
        """`ancestors` on `device`, copied or built there once."""
        return self._once(("ancestors", device), lambda: ancestors_of(self.parents_on(device)))

    def parents_on(self, device: torch.device) -> Tensor:
        """(N,) long: the parents, -1 for the root's."""
        return self._once(("parents", device), lambda: torch.tensor(self.parents, device=device))

    def depths_on(self, device: torch.device) -> Tensor:
        """(N,) long: how many ancestors each node has."""
        return self._once(("depths", device), lambda: self.on(device).sum(-1) - 1)

    def windows(self, width: int, offset: int, device: torch.device) -> Tensor:
        """(N, width) places in [past (offset) | nodes (N)] of each node's last `width` inputs, itself last.

        Beyond the root the window goes on into the past. `offset` must be at least `width - 1`.
        """

        def built() -> Tensor:
            parents, at = self.parents_on(device), torch.arange(self.size, device=device)
            columns = [at]
            for _ in range(width - 1):
                # -1 is the last token of the past, -2 the one before it.
                at = torch.where(at >= 0, parents[at.clamp(min=0)], at - 1)
                columns.append(at)
            return torch.stack(columns[::-1], dim=1) + offset

        return self._once(("windows", width, offset, device), built)

    def rows(self, path: Sequence[int], device: torch.device) -> Tensor:
        """(len(path),) long: `path` as an index on `device`, copied there once for all layers."""
        return self._once(("path", tuple(path), device), lambda: torch.tensor(path, dtype=torch.long, device=device))

    def path_to(self, node: int) -> tuple[int, ...]:
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return tuple(reversed(path))

    def path(self, indices: Sequence[int]) -> tuple[int, ...]:
        """`indices` as a path that starts at the root, or a refusal."""
        try:
            path = tuple(operator.index(index) for index in indices)
        except TypeError as error:
            raise RuntimeRefusal(f"a path is a sequence of whole numbers: {error}") from None
        if not path:
            raise RuntimeRefusal("nothing to commit: a path holds at least the root; crop_to takes all back")
        if path[0] != 0 or any(not 0 <= node < self.size for node in path):
            raise RuntimeRefusal(f"{list(path)} is no path of this tree: it must start at 0 and stay below {self.size}")
        for parent, child in pairwise(path):
            if self.parents[child] != parent:
                raise RuntimeRefusal(
                    f"{list(path)} is no path of this tree: {child} follows {self.parents[child]}, not {parent}"
                )
        return path

    def _once(self, key: tuple[object, ...], build: Callable[[], Tensor]) -> Tensor:
        if key not in self._by_device:
            self._by_device[key] = build()
        return self._by_device[key]


def inspected(visible: Tensor) -> tuple[Tensor, Tensor]:
    """Parents (N,) in an (N, N) bool matrix as `from_visibility` takes it, and (4,) bool: what of MALFORMED is true.

    Tensors on the matrix's own device; nothing is read by the host.
    """
    size, device = visible.shape[0], visible.device
    # The parent is the last node seen before oneself; -1 where there is none.
    parents = (visible.tril(-1) * torch.arange(1, size + 1, device=device)).amax(dim=1) - 1
    inherited = visible[parents.clamp(min=0)] | torch.eye(size, dtype=torch.bool, device=device)
    wrong = [
        ~visible.diagonal().all(),
        visible.triu(1).any(),
        (parents[1:] < 0).any(),
        (inherited != visible)[1:].any(),
    ]
    return parents, torch.stack(wrong)


def ancestors_of(parents: Tensor) -> Tensor:
    """(N, N) bool, row i true at i and its ancestors; parents (N,) long, -1 for the root's, before their children.

    Each pass doubles how far up a node sees: log2 of the depth passes, none of them over single nodes.
    """
    size = parents.shape[0]
    jump = parents.clamp(min=0)
    visible = torch.eye(size, dtype=torch.bool, device=parents.device)
    reach = 1
    while reach < size:
        visible = visible | visible[jump]
        jump, reach = jump[jump], 2 * reach
    return visible
