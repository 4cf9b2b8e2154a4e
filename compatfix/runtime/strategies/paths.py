"""Paths: one forward, in which each path from the root to a leaf is a batch row that continues from the same cache.

Rows shorter than the longest are filled up at their end, which no earlier token sees. Nothing is intercepted and no
mask is needed, so this works wherever several tokens at once and several rows at once are right. A commit copies the
states of the path's row where a longest path is kept whole; otherwise the kept tokens are run once more from the states
at the block's start. Memory during a verify: one copy of the cache per leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..calls import Call
from ..refusal import RuntimeRefusal
from ..slots import Slot, keep_tokens, state_slots, token_slots
from ..trees import Tree
from .base import Block, Facts, Record, Strategy, kept_logits, refuse_over

Label = tuple[int, str]


class Paths(Strategy):
    name = "paths"

    def obstacle(self, facts: Facts) -> str | None:
        return None

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        cache, rows = block.cache, Rows.of(block.tree)
        committed = [(slot, slot.tensor) for slot in (*token_slots(cache), *state_slots(cache))]
        refuse_over(facts.state_limit, self.name, rows.bytes_of([slot for slot, _ in committed], block.start))
        try:
            for slot, tensor in committed:
                slot.put(_expanded(slot, tensor, rows.count))
            output = rows.call(block.call, block.start).forward()
            states = {slot.label: slot.tensor for slot in state_slots(cache)}
            new = {slot.label: rows.columns(slot, block.start) for slot in token_slots(cache)}
        finally:
            for slot, tensor in committed:
                slot.put(tensor)
        for slot in token_slots(cache):
            slot.put(torch.cat([slot.tensor, new[slot.label]], dim=_axis(slot)))
        keep_tokens(cache, block.start, range(block.tree.size))  # the counters
        keep = block.call.arguments.get("logits_to_keep", 0)
        return rows.output(output, keep), PathsRecord(block, rows, states)


@dataclass(frozen=True)
class Rows:
    """A tree as batch rows: `nodes` (P, D) names the node at each place; the last of a path is repeated to fill up."""

    tree: Tree
    nodes: Tensor
    extra: Tensor  # (P, D): how far each place lies behind the end of its path
    row: Tensor  # (N,): a row in which each node lies; its column is its depth
    column: Tensor  # (N,)
    whole: Mapping[tuple[int, ...], int]  # the rows that are not filled up, by their path

    @staticmethod
    def of(tree: Tree) -> Rows:
        parents = set(tree.parents)
        paths = [tree.path_to(node) for node in range(tree.size) if node not in parents]
        width = max(len(path) for path in paths)
        row = [0] * tree.size
        for index, path in reversed(list(enumerate(paths))):
            for node in path:
                row[node] = index
        return Rows(
            tree,
            torch.tensor([[*path, *path[-1:] * (width - len(path))] for path in paths]),
            torch.tensor([[max(0, at + 1 - len(path)) for at in range(width)] for path in paths]),
            torch.tensor(row),
            torch.tensor(tree.depths),
            {path: index for index, path in enumerate(paths) if len(path) == width},
        )

    @property
    def count(self) -> int:
        return self.nodes.shape[0]

    @property
    def width(self) -> int:
        return self.nodes.shape[1]

    def bytes_of(self, slots: Sequence[Slot], start: int) -> int:
        """What the rows' copies of a cache of `start` tokens take once their tokens are in it."""
        of_states = sum(slot.tensor.nbytes for slot in slots if slot.token_axis is None)
        of_tokens = sum(slot.tensor.nbytes for slot in slots if slot.token_axis is not None)
        return self.count * (of_states + of_tokens * (start + self.width) // start)

    def call(self, call: Call, start: int) -> Call:
        """The call of all rows at once, under the model's own causal masks."""
        changes: dict[str, Any] = {}
        for name, value in call.arguments.items():
            if isinstance(value, Tensor) and value.shape[:2] == (1, self.tree.size):
                changes[name] = value[0][self.nodes.to(value.device)]
        device = call.tokens.device
        positions = call.arguments.get("position_ids")
        if isinstance(positions, Tensor):
            taken = positions[..., 0, :][..., self.nodes.to(positions.device)]  # (…, P, D)
            changes["position_ids"] = taken + self.extra.to(positions)
        else:
            changes["position_ids"] = (start + torch.arange(self.width, device=device)).expand(self.count, -1)
        if isinstance(call.arguments.get("cache_position"), Tensor):
            changes["cache_position"] = start + torch.arange(self.width, device=device)
        if "logits_to_keep" in call.arguments:
            changes["logits_to_keep"] = 0
        return call.changed(attention_mask=None, **changes)

    def columns(self, slot: Slot, start: int) -> Tensor:
        """What the nodes added to a slot, one row with the nodes in their order along the slot's token axis."""
        tensor, axis = slot.tensor, _axis(slot)
        device = tensor.device
        if tensor.shape[:1] != (self.count,) or tensor.shape[axis] != start + self.width:
            raise RuntimeRefusal(
                f"{slot.name} of layer {slot.layer} has the shape {tuple(tensor.shape)} after {self.width} tokens in "
                f"{self.count} rows behind {start}"
            )
        picked = tensor.movedim(axis, 1)[self.row.to(device), start + self.column.to(device)]  # (N, …)
        return picked[None].movedim(1, axis)

    def output(self, output: Any, logits_to_keep: Any = 0) -> Any:
        """The output of the rows as the output of one block, in node order."""
        if isinstance(output, Mapping):
            fields = {name: self._nodes_of(value) for name, value in output.items()}
            if "logits" in fields:
                fields["logits"] = kept_logits(fields["logits"], logits_to_keep)
            return type(output)(**fields)
        if isinstance(output, tuple):
            return tuple(self._nodes_of(value) for value in output)
        return self._nodes_of(output)

    def _nodes_of(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim >= 2 and value.shape[:2] == self.nodes.shape:
            return value[self.row.to(value.device), self.column.to(value.device)][None]
        if isinstance(value, tuple) and all(isinstance(item, Tensor) for item in value):
            return tuple(self._nodes_of(item) for item in value)
        return value


class PathsRecord(Record):
    """The states at the end of each row, and the call of the block, to run a part of it again."""

    def __init__(self, block: Block, rows: Rows, states: Mapping[Label, Tensor]) -> None:
        super().__init__(block.start, block.tree)
        self.whole = rows.whole
        self.states = states
        # Without states there is nothing to run again; the call would keep the target and its inputs alive.
        self.call = block.call if states else None

    def keep(self, cache: Any, path: Sequence[int]) -> None:
        if self.call is None or not path or tuple(path) in self.whole:
            super().keep(cache, path)
            return
        held = [(slot, slot.tensor) for slot in (*token_slots(cache), *state_slots(cache))]
        try:
            keep_tokens(cache, self.start, ())
            for slot in state_slots(cache):
                slot.put(slot.tensor.clone())  # layers update their states in place
            # Tensors made in inference mode may be updated in that mode only.
            inference = any(slot.tensor.is_inference() for slot in state_slots(cache))
            with torch.inference_mode(inference), torch.no_grad():
                _line(self.call, path, self.start).forward()
        except BaseException:
            for slot, tensor in held:
                slot.put(tensor)
            keep_tokens(cache, self.start, range(self.tree.size))
            raise

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        row = self.whole.get(tuple(path), 0)
        for slot in state_slots(cache):
            if slot.label in self.states:
                slot.put(self.states[slot.label][row : row + 1].clone())


def _line(call: Call, path: Sequence[int], start: int) -> Call:
    """The call of the nodes of `path` alone, one after another."""
    changes: dict[str, Any] = {"attention_mask": None}
    for name, value in call.arguments.items():
        if isinstance(value, Tensor) and value.shape[:2] == (1, call.size):
            changes[name] = value[:, list(path)]
    positions = call.arguments.get("position_ids")
    at = torch.arange(start, start + len(path), device=call.tokens.device)
    changes["position_ids"] = positions[..., list(path)] if isinstance(positions, Tensor) else at[None]
    if isinstance(call.arguments.get("cache_position"), Tensor):
        changes["cache_position"] = at
    if call.accepts("logits_to_keep"):
        changes["logits_to_keep"] = 1
    if "output_hidden_states" in call.arguments:
        changes["output_hidden_states"] = False
    return call.changed(**changes)


def _expanded(slot: Slot, tensor: Tensor, count: int) -> Tensor:
    """One row as `count` rows: states copied, as layers update them in place; keys and values only seen so often."""
    if tensor.shape[0] != 1:
        raise RuntimeRefusal(
            f"{slot.name} of layer {slot.layer} has the shape {tuple(tensor.shape)}, not one batch row; "
            "it cannot be expanded"
        )
    rows = tensor.expand(count, *tensor.shape[1:])
    return rows.clone() if slot.token_axis is None else rows


def _axis(slot: Slot) -> int:
    assert slot.token_axis is not None
    return slot.token_axis if slot.token_axis >= 0 else slot.tensor.ndim + slot.token_axis
