"""Steps: one token at a time, depth first. Slow, and right wherever plain decoding is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..slots import keep_tokens, state_slots, token_slots
from ..trees import Tree
from .base import Block, Facts, Record, StateRecord, Strategy, kept_logits, refuse_over

Label = tuple[int, str]


class Steps(Strategy):
    name = "steps"
    updates_states = True

    def obstacle(self, facts: Facts) -> str | None:
        return None

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        tree, cache, start = block.tree, block.cache, block.start
        held = 2 * tree.size * sum(slot.tensor.nbytes for slot in state_slots(cache))  # node by node, then stacked
        refuse_over(facts.state_limit, self.name, held)
        committed = {slot.label: slot.tensor.clone() for slot in state_slots(cache)}
        states: list[dict[Label, Tensor]] = [{} for _ in range(tree.size)]
        columns: list[dict[Label, Tensor]] = [{} for _ in range(tree.size)]
        outputs: list[Any] = [None] * tree.size
        last = -1
        for node in _depth_first(tree):
            parent, depth = tree.parents[node], tree.depths[node]
            if parent != last:
                # The nodes now in the cache are ancestors of `node` up to its depth: cut, and take the parent's states.
                keep_tokens(cache, start, range(depth))
                for slot in state_slots(cache):
                    slot.put(states[parent][slot.label].clone())
            outputs[node] = block.call.node(node, start + depth).forward()
            states[node] = {slot.label: slot.tensor.clone() for slot in state_slots(cache)}
            columns[node] = {slot.label: _last(slot.tensor, slot.token_axis) for slot in token_slots(cache)}
            last = node
        for slot in token_slots(cache):
            assert slot.token_axis is not None
            past = slot.tensor.narrow(slot.token_axis, 0, start)
            slot.put(torch.cat([past, *(column[slot.label] for column in columns)], dim=slot.token_axis))
        for slot in state_slots(cache):
            slot.put(committed[slot.label])
        keep_tokens(cache, start, range(tree.size))  # the counters
        stacked = {label: torch.cat([state[label] for state in states]) for label in committed}
        return _joined(outputs, block), StateRecord(start, tree, stacked)


def _depth_first(tree: Tree) -> list[int]:
    children: list[list[int]] = [[] for _ in tree.parents]
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            children[parent].append(node)
    order, stack = [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(children[node]))
    return order


def _last(tensor: Tensor, axis: int | None) -> Tensor:
    assert axis is not None
    return tensor.narrow(axis, tensor.shape[axis] - 1, 1).clone()


def _joined(outputs: Sequence[Any], block: Block) -> Any:
    """The outputs of single tokens as the output of one block, in node order."""
    first = outputs[0]
    if isinstance(first, Mapping):
        fields = {name: _join([output[name] for output in outputs]) for name in first}
        keep = block.call.arguments.get("logits_to_keep", 0)
        if "logits" in fields:
            fields["logits"] = kept_logits(fields["logits"], keep)
        return type(first)(**fields)
    if isinstance(first, tuple):
        return tuple(_join(list(items)) for items in zip(*outputs, strict=True))
    return _join(list(outputs))


def _join(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor) and first.ndim >= 2 and first.shape[:2] == (1, 1):
        return torch.cat(values, dim=1)
    if isinstance(first, tuple) and all(isinstance(item, Tensor) for item in first):
        return tuple(_join(list(items)) for items in zip(*values, strict=True))
    return first
