"""The start-up measurement: does a strategy agree with plain decoding on the target in hand?

Everything runs on throw-away caches with a few random tokens. Plain decoding here is one token at a time, which is
right on every version. Three numbers, all largest differences of logits:
n  plain decoding against a prefill of the same tokens: what another shape of the computation alone changes. Never taken
   below the rounding of the dtype, eps · largest logit.
f  the smallest change that a planted fault makes: states not rolled back, a sibling that leaked into the keys.
e  the strategy against plain decoding: at every node of a small tree and of a chain, and after commits of a whole path,
   of the deepest, of part of a path and of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .caches import new_cache
from .calls import Call, bind
from .mixers import find_mixers
from .parts import input_embeddings
from .slots import state_slots, token_slots
from .strategies import Block, Facts, Strategy
from .trees import Tree

# 0 ─┬─ 1 ─┬─ 3 ── 6
#    │     └─ 4
#    └─ 2 ─── 5
TREE = Tree((-1, 0, 0, 1, 1, 2, 3))
LEAVES = (4, 5, 6)
# A path whose nodes are not neighbours in the block: the sibling 3 lies between.
WHOLE, PART = (0, 1, 4), (0, 1)
# The deepest path: strategies that keep whole rows treat it unlike all others. It is verified as a chain too.
LONGEST = (0, 1, 3, 6)
# Faults: behind this path, this node is left over while that node is decoded.
LEFTOVERS = (((0, 1), 3, 4), ((0,), 1, 2), ((0, 1, 3), 4, 6), ((0, 2), 1, 5))
PREFIX = 9
# Windows up to this size are passed by the prefix, so that their masks are measured too.
SMALL_WINDOW = 256
# What configs call the number of tokens that a layer looks back.
WINDOWS = ("sliding_window", "window_size", "attention_window_size", "attention_window", "local_attention")


class Reference:
    """Plain decoding of a target on throw-away caches, and what it says at every node of the tree."""

    def __init__(self, target: nn.Module, config: Any) -> None:
        self.target = target
        embeddings = input_embeddings(target)
        weight = next(embeddings.parameters())
        self.device = weight.device if weight.device.type != "meta" else torch.device("cpu")
        windows = [getattr(config, name, None) for name in WINDOWS]
        window = next((value for value in windows if isinstance(value, int)), None)
        size = PREFIX
        if isinstance(window, int) and window <= SMALL_WINDOW:
            size += window
        self.windows_passed = not isinstance(window, int) or size > window
        # The lower half of the vocabulary: image and control tokens sit at its end.
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(1, max(2, weight.shape[0] // 2), (size + TREE.size + 1,), generator=generator).tolist()
        self.prefix: list[int] = tokens[:size]
        self.nodes: list[int] = tokens[size : size + TREE.size]
        self.after: int = tokens[-1]
        self.at_node: dict[int, Tensor] = {}
        self.after_path: dict[tuple[int, ...], Tensor] = {}

    @property
    def start(self) -> int:
        return len(self.prefix)

    def call(self, tokens: Sequence[int], positions: Sequence[int], cache: Any) -> Call:
        arguments = {
            "input_ids": torch.tensor([list(tokens)], device=self.device),
            "position_ids": torch.tensor([list(positions)], device=self.device),
            "past_key_values": cache,
            "use_cache": True,
        }
        call = bind(self.target, (), arguments)
        if not call.accepts("position_ids"):
            arguments.pop("position_ids")
            call = bind(self.target, (), arguments)
        return call

    def prefilled(self, tokens: Sequence[int] | None = None) -> tuple[Any, Tensor]:
        """A cache holding `tokens` (the prefix), and their logits (T, vocabulary)."""
        cache, tokens = new_cache(self.target), self.prefix if tokens is None else tokens
        return cache, logits_of(self.call(tokens, range(len(tokens)), cache).forward())

    def step(self, cache: Any, token: int, position: int) -> Tensor:
        return logits_of(self.call([token], [position], cache).forward())[-1]

    def follow(self, path: Sequence[int]) -> tuple[Any, list[Tensor]]:
        """A cache on which the prefix and then the nodes of `path` were decoded one by one, and their logits."""
        cache, _ = self.prefilled()
        return cache, [self.step(cache, self.nodes[node], self.start + depth) for depth, node in enumerate(path)]


@dataclass(frozen=True)
class Baseline:
    """What is measured on a target before strategies are tried."""

    reference: Reference
    facts: Facts
    noise: float
    noise_floor: float
    fault: float


def baseline(target: nn.Module, config: Any, dtype: torch.dtype) -> Baseline:
    reference = Reference(target, config)
    noise, largest = 0.0, 0.0
    for leaf in LEAVES:
        path = TREE.path_to(leaf)
        cache, stepped = reference.follow(path)
        reference.at_node.update(zip(path, stepped, strict=True))
        stepped.append(reference.step(cache, reference.after, reference.start + len(path)))
        reference.after_path[path] = stepped[-1]
        ids = [*reference.prefix, *(reference.nodes[node] for node in path), reference.after]
        _, at_once = reference.prefilled(ids)
        noise = max(noise, _difference(torch.stack(stepped), at_once[reference.start :]))
        largest = max(largest, float(at_once.abs().max()))
    # The nodes' logits are complete: faults and errors are told by comparing with them.
    fault = _smallest_fault(reference)
    cache, _ = reference.follow((0,))
    mixers = find_mixers(target, cache, lambda: reference.step(cache, reference.nodes[1], reference.start + 1))
    return Baseline(reference, Facts(mixers, config, dtype), noise, torch.finfo(dtype).eps * largest, fault)


def error_of(strategy: Strategy, base: Baseline) -> float:
    """e of one strategy. Raises whatever the strategy raises."""
    reference, facts, start = base.reference, base.facts, base.reference.start
    error = 0.0

    def verified(cache: Any, nodes: Sequence[int] = range(TREE.size), tree: Tree = TREE) -> Any:
        nonlocal error
        tokens = [reference.nodes[node] for node in nodes]
        call = reference.call(tokens, [start + depth for depth in tree.depths], cache)
        output, record = strategy.run(facts, Block(call, start, tree))
        expected = torch.stack([reference.at_node[node] for node in nodes])
        error = max(error, _difference(logits_of(output), expected))
        return record

    def then(cache: Any, token: int, position: int, expected: Tensor) -> None:
        nonlocal error
        error = max(error, _difference(reference.step(cache, token, position), expected))

    cache, _ = reference.prefilled()
    verified(cache).keep(cache, WHOLE)
    then(cache, reference.after, start + len(WHOLE), reference.after_path[WHOLE])
    cache, _ = reference.prefilled()
    verified(cache).keep(cache, ())
    verified(cache).keep(cache, PART)
    then(cache, reference.nodes[4], start + len(PART), reference.at_node[4])
    cache, _ = reference.prefilled()
    verified(cache, LONGEST, Tree.chain(len(LONGEST))).keep(cache, ())
    verified(cache).keep(cache, LONGEST)
    then(cache, reference.after, start + len(LONGEST), reference.after_path[LONGEST])
    return error


@contextmanager
def untouched(target: nn.Module) -> Iterator[None]:
    """Puts back what models remember from a forward outside their buffers (position offsets of image prompts)."""
    kept = [
        (module, {k: v for k, v in module.__dict__.items() if v is None or isinstance(v, (Tensor, int, float))})
        for module in target.modules()
    ]
    try:
        with torch.no_grad():
            yield
    finally:
        for module, values in kept:
            module.__dict__.update(values)


def logits_of(output: Any) -> Tensor:
    """(N, vocabulary), in float32 at least."""
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits[0].to(torch.promote_types(logits.dtype, torch.float32))


def _smallest_fault(reference: Reference) -> float:
    """Plants two faults by hand, in plain decoding, and takes the one that shows less.

    A node is decoded behind its path while a sibling or cousin, decoded there before, is left over: either in the
    states (keys cut, states not rolled back) or in the keys (states rolled back, one key too many). Each fault counts
    as what it does at the node where it shows most, as an error does.
    """
    in_states: list[float] = []
    in_keys: list[float] = []
    for path, leftover, node in LEFTOVERS:
        position = reference.start + len(path)
        cache, _ = reference.follow((*path, leftover))
        clean, _ = reference.follow(path)
        expected = reference.at_node[node]
        dirty = {slot.label: slot.tensor.clone() for slot in state_slots(cache)}
        if token_slots(cache):
            for slot in state_slots(cache):
                slot.put(next(own.tensor for own in state_slots(clean) if own.label == slot.label).clone())
            in_keys.append(_difference(reference.step(cache, reference.nodes[node], position), expected))
        if dirty:
            for slot in state_slots(clean):
                slot.put(dirty[slot.label])
            in_states.append(_difference(reference.step(clean, reference.nodes[node], position), expected))
    return min((max(shown) for shown in (in_states, in_keys) if shown), default=0.0)


def _difference(a: Tensor, b: Tensor) -> float:
    difference = (a - b.to(a.device)).abs().max()
    return float(difference) if bool(torch.isfinite(difference)) else float("inf")
