"""The shape of a block of tokens: which node follows which. A chain is the tree of one path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from .refusal import RuntimeRefusal


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
        size = visible.shape[0]
        if not bool(visible.diagonal().all()):
            raise RuntimeRefusal("malformed tree mask: a node does not see itself")
        if bool(visible.triu(1).any()):
            raise RuntimeRefusal("malformed tree mask: a node sees a later one; nodes must follow their ancestors")
        # The parent is the last node seen before oneself; 0 where there is none.
        order = torch.arange(1, size + 1, device=visible.device)
        parents = (visible.tril(-1) * order).amax(dim=1) - 1
        if bool((parents[1:] < 0).any()):
            raise RuntimeRefusal("malformed tree mask: more than one root; every node must see the block's first token")
        inherited = visible[parents.clamp(min=0)] | torch.eye(size, dtype=torch.bool, device=visible.device)
        if not torch.equal(inherited[1:], visible[1:]):
            raise RuntimeRefusal("malformed tree mask: not transitive; a node must see exactly what its parent sees")
        tree = Tree(tuple(parents.tolist()))
        tree.__dict__["ancestors"] = visible  # just checked to be what the property would build, node by node
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

    @cached_property
    def ancestors(self) -> Tensor:
        """(N, N) bool, row i true at i and its ancestors."""
        matrix = torch.zeros(self.size, self.size, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                matrix[node] = matrix[parent]
            matrix[node, node] = True
        return matrix

    def on(self, device: torch.device) -> Tensor:
        """`ancestors` on `device`, copied there once."""
        key = ("ancestors", device)
        if key not in self._by_device:
            self._by_device[key] = self.ancestors.to(device)
        return self._by_device[key]

    def windows(self, width: int, offset: int, device: torch.device) -> Tensor:
        """(N, width) places in [past (offset) | nodes (N)] of each node's last `width` inputs, itself last.

        Beyond the root the window goes on into the past. `offset` must be at least `width - 1`.
        """
        key = ("windows", width, offset, device)
        if key not in self._by_device:
            parents = torch.tensor(self.parents)
            at = torch.arange(self.size)
            columns = [at]
            for _ in range(width - 1):
                # -1 is the last token of the past, -2 the one before it.
                at = torch.where(at >= 0, parents[at.clamp(min=0)], at - 1)
                columns.append(at)
            self._by_device[key] = (torch.stack(columns[::-1], dim=1) + offset).to(device)
        return self._by_device[key]

    def steps(self, device: torch.device) -> list[tuple[Tensor, Tensor | None]]:
        """For each depth the nodes and their parents, as index tensors; None for the root's parent."""
        result: list[tuple[Tensor, Tensor | None]] = []
        for depth, nodes in enumerate(self.levels):
            key = ("nodes", depth, device)
            if key not in self._by_device:
                self._by_device[key] = torch.tensor(nodes, device=device)
                self._by_device["parents", depth, device] = torch.tensor(
                    [self.parents[node] for node in nodes], device=device
                )
            result.append((self._by_device[key], self._by_device["parents", depth, device] if depth else None))
        return result

    def path_to(self, node: int) -> tuple[int, ...]:
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return tuple(reversed(path))

    def path(self, indices: Sequence[int]) -> tuple[int, ...]:
        """`indices` as a path that starts at the root, or a refusal."""
        path = tuple(int(index) for index in indices)
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
