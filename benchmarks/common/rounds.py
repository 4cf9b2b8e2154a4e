"""One round of speculative decoding on a random target: a block of drafted tokens, verified and in part committed."""

from __future__ import annotations

import copy
import inspect
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import compatfix.runtime as runtime
from compatfix.runtime.masks import tree_masks
from compatfix.runtime.mixers import Forward, replaced_forwards
from compatfix.runtime.plans import plan_of
from compatfix.runtime.slots import Snapshot
from compatfix.runtime.trees import Tree

from .targets import VOCABULARY

CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
NAIVE = "naive forward"
REFERENCE = Path(__file__).parents[2] / "vendor" / "ddtree_ref"


@dataclass(frozen=True)
class Taken:
    """Milliseconds of one round: all of it, its commit, and what of it was spent outside the target's forward."""

    total: float
    commit: float = 0.0
    outside: float = 0.0


def tree_of(block: int, budget: int) -> Tree:
    """A tree of `budget` nodes and the root, `block` deep: a spine, and siblings of its nodes with short tails.

    Such is the shape that a draft of `block` tokens with a fixed node budget gives: broad at the top, thin at the end.
    Nodes are numbered by depth, so that a path's nodes are no neighbours, as in a tree that is built best first.
    """
    parents = list(range(-1, min(block, budget + 1) - 1))
    generator = torch.Generator().manual_seed(0)
    depths = list(range(len(parents)))
    while len(parents) < budget + 1:
        # Of two random nodes the shallower one gets a child.
        first, second = torch.randint(0, len(parents), (2,), generator=generator).tolist()
        parent = min(first, second, key=lambda node: depths[node])
        if depths[parent] < block - 1:
            parents.append(parent)
            depths.append(depths[parent] + 1)
    order = sorted(range(len(parents)), key=depths.__getitem__)
    place = {node: index for index, node in enumerate(order)}
    return Tree(tuple(place.get(parents[node], -1) for node in order))


class Bench:
    """Candidates that verify the same tree behind the same prompt, each on a cache of its own.

    `targets` are the model once per strategy; the naive forward, wrong wherever a layer keeps a state, runs beside
    them.
    """

    def __init__(self, model: Any, targets: dict[str, Any], context: int, clock: Callable[[], float]) -> None:
        self.model, self.targets, self.context, self.clock = model, targets, context, clock
        generator = torch.Generator().manual_seed(1)
        prompt = torch.randint(1, VOCABULARY, (1, context), generator=generator)
        with torch.inference_mode():
            self._prefilled = runtime.new_cache(model)
            runtime.verify(model, prompt, past_key_values=self._prefilled, use_cache=True, logits_to_keep=1)
        self._inside = 0.0

    def rounds(self, tree: Tree, count: int) -> dict[str, list[Taken]]:
        """What each candidate took in each of `count` rounds, in turn, after one that warms up."""
        taken: dict[str, list[Taken]] = {name: [] for name in [NAIVE, *self.targets]}
        runs = {name: self._run(name, tree) for name in taken}
        caches = {name: copy.deepcopy(self._prefilled) for name in taken}
        with torch.inference_mode(), self._timed_forward():
            for number in range(count + 1):
                for name in runs if number % 2 else reversed(runs):
                    one = runs[name](caches[name])
                    if number:
                        taken[name].append(one)
        return taken

    def exact(self, name: str, tree: Tree) -> Callable[[Any], Taken]:
        """verify + commit of one candidate on a cache that is put back afterwards."""
        arguments, path = self._arguments(tree), torch.tensor(accepted(tree))

        def once(cache: Any) -> Taken:
            before = Snapshot(cache, own_states=True)
            self._inside = 0.0
            begun = self.clock()
            runtime.verify(self.targets[name], **arguments, past_key_values=cache, use_cache=True)
            verified = self.clock()
            runtime.commit(cache, path)
            done = self.clock()
            before.restore(cache)
            return Taken(1e3 * (done - begun), 1e3 * (done - verified), 1e3 * (done - begun - self._inside))

        return once

    def halves(self, name: str, tree: Tree) -> tuple[Callable[[Any], Any], Callable[[Any], object]]:
        """Verify (returning the output) and commit, apart; the naive forward commits nothing."""
        if name == NAIVE:
            return self._naive_forward(tree), lambda _: None
        arguments, path = self._arguments(tree), torch.tensor(accepted(tree))
        target = self.targets[name]
        return (
            lambda cache: runtime.verify(target, **arguments, past_key_values=cache, use_cache=True),
            lambda cache: runtime.commit(cache, path),
        )

    def copied_cache(self) -> Any:
        return copy.deepcopy(self._prefilled)

    def _run(self, name: str, tree: Tree) -> Callable[[Any], Taken]:
        return self.naive(tree) if name == NAIVE else self.exact(name, tree)

    def naive(self, tree: Tree) -> Callable[[Any], Taken]:
        forward = self._naive_forward(tree)

        def once(cache: Any) -> Taken:
            before = Snapshot(cache, own_states=True)
            begun = self.clock()
            forward(cache)
            taken = self.clock() - begun
            before.restore(cache)
            return Taken(1e3 * taken)

        return once

    def _naive_forward(self, tree: Tree) -> Callable[[Any], Any]:
        """One call of the model over the same nodes, under masks that are right for its attention."""
        arguments, facts = self._arguments(tree), plan_of(next(iter(self.targets.values()))).facts
        arguments["attention_mask"] = tree_masks(facts.config, tree, self.context, torch.float32, torch.device("cpu"))
        accepts = inspect.signature(self.model.forward).parameters
        keyword = next(name for name in ("cache", "past_key_values", "cache_params") if name in accepts)

        def without_mask(original: Forward) -> Forward:
            # A mixer takes a padding mask, and models that are given a mask of nodes hand it on.
            return lambda *args, **kwargs: original(*args, **{**kwargs, "attention_mask": None})

        makers = {
            mixer.module: without_mask
            for mixer in facts.mixers.found
            if "attention_mask" in inspect.signature(mixer.module.forward).parameters
        }

        def forward(cache: Any) -> Any:
            with replaced_forwards(makers):
                return self.model(**arguments, use_cache=True, **{keyword: cache})

        return forward

    def _arguments(self, tree: Tree) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(1, VOCABULARY, (1, tree.size), generator=generator)
        mask = tree_masks(object(), tree, self.context, torch.float32, ids.device)
        arguments = {"input_ids": ids, "attention_mask": mask}
        positions: Tensor = (self.context + torch.tensor(tree.depths))[None]
        if "position_ids" in inspect.signature(self.model.forward).parameters:
            arguments["position_ids"] = positions
        return arguments

    @contextmanager
    def _timed_forward(self) -> Iterator[None]:
        begun = 0.0

        def before(*_: Any) -> None:
            nonlocal begun
            begun = self.clock()

        def after(*_: Any) -> None:
            self._inside += self.clock() - begun

        # Shallow copies share their hooks with the model.
        handles = [self.model.register_forward_pre_hook(before), self.model.register_forward_hook(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def accepted(tree: Tree) -> tuple[int, ...]:
    """What a round accepts here: half of the way to the deepest node, the middle of the range."""
    path = tree.path_to(tree.depths.index(max(tree.depths)))
    return path[: max(1, len(path) // 2)]


def reference_bookkeeping(budget: int, block: int, context: int, rounds: int, clock: Callable[[], float]) -> float:
    """Milliseconds (median) that the reference tree spends on building, compiling and walking a tree.

    Its search for the likeliest tokens of the draft's distributions is counted.
    """
    ddtree = _reference()
    logits = 3 * torch.randn(block - 1, VOCABULARY, generator=torch.Generator().manual_seed(0))
    ids, positions = (torch.empty(1, 1 + budget, dtype=torch.long) for _ in range(2))
    mask, root = torch.zeros(1, 1, 1 + budget, context + 1 + budget), torch.tensor([1])
    previous, taken = (0, 0), []
    for _ in range(rounds + 1):
        begun = clock()
        tokens, depths, _, child_maps, visibility, _ = ddtree.build_ddtree_tree(logits, budget)
        *_, start, length = ddtree.compile_ddtree_tree(
            root, context, tokens, depths, visibility, ids, positions, mask, *previous
        )
        ddtree.follow_verified_tree(child_maps, ids)
        taken.append(1e3 * (clock() - begun))
        previous = (start, length)
    return statistics.median(taken[1:])


def spread(values: list[float], form: str) -> str:
    """Median, and first to third quartile."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    return f"{statistics.median(ordered):{form}} [{low:{form}}–{high:{form}}]"


def _reference() -> Any:
    sys.path.insert(0, str(REFERENCE))
    try:
        import ddtree
    finally:
        sys.path.remove(str(REFERENCE))
    return ddtree
