"""How verify + commit grows with the context and with the budget, and what dominates.

Each target is verified by the strategy that the runtime chooses for it. All budgets behind one context run in turn, and
the naive forward over the same nodes beside each. The split times the target's own modules: attention (the modules that
store keys and values, the copy that the cache makes of itself included), mixers (those that keep a state), the rest of
the model (projections and experts of the feed-forward layers, norms, the head); masks (reading the caller's, making
those that the model gets); bookkeeping (the rest of a round outside the target, and building, compiling and walking the
reference tree).

    python benchmarks/growth.py [--quick] [--models qwen3 …] [--contexts 256 8192] [--budgets 8 256] [--svg PATH]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import compatfix.runtime as runtime
from benchmarks.common.plot import panels
from benchmarks.common.rounds import CLOCKS, Bench, reference_bookkeeping, tree_of
from benchmarks.common.targets import KINDS, build
from compatfix.runtime.masks import read_tree, tree_masks
from compatfix.runtime.plans import plan_of
from compatfix.runtime.trees import Tree

CONTEXTS, BUDGETS, BLOCK = [256, 1024, 4096, 8192], [8, 24, 64, 128, 256], 16
PARTS = ("attention", "mixers", "rest of model", "masks", "bookkeeping")


@dataclass
class Cell:
    """Milliseconds at one context and budget: per round the exact and the naive total, and the parts of the exact."""

    exact: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def ratio(self) -> float:
        return statistics.median(one / other for one, other in zip(self.exact, self.naive, strict=True))

    def shares(self) -> dict[str, float]:
        medians = {name: statistics.median(self.parts[name]) for name in PARTS}
        total = sum(medians.values())
        return {name: median / total for name, median in medians.items()}


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    hidden, layers = (64, 4) if options.quick else (512, 8)
    contexts, budgets = ([16, 32], [8, 24]) if options.quick else (options.contexts, options.budgets)
    rounds = 2 if options.quick else options.rounds
    print(f"hidden {hidden}, {layers} layers, block {BLOCK}, float32, 1 thread, CPU time, {rounds} rounds")
    print(f"{'model':12} {'context':>7} {'budget':>6} {'ms':>8} {'naive':>8} {'ratio':>6}  " + "  ".join(PARTS))
    plots: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for kind in options.models:
        model = build(kind, hidden, layers)
        name = runtime.prepare(model)["strategy"]
        lines = plots.setdefault(f"{kind}: {name}", {})
        for context in contexts:
            cells = measured(model, name, context, budgets, rounds)
            for budget, cell in cells.items():
                exact, naive = statistics.median(cell.exact), statistics.median(cell.naive)
                shares = "  ".join(f"{100 * share:{len(part) - 2}.1f} %" for part, share in cell.shares().items())
                print(
                    f"{kind:12} {context:7} {budget:6} {exact:8.1f} {naive:8.1f} {cell.ratio:6.2f}  {shares}",
                    flush=True,
                )
                lines.setdefault(f"budget {budget}", []).append((context, exact))
    if options.svg:
        text = panels("verify + commit of one round", "tokens of context", "ms (CPU, one thread)", plots)
        Path(options.svg).write_text(text, encoding="utf-8")


def measured(model: Any, name: str, context: int, budgets: list[int], rounds: int) -> dict[int, Cell]:
    """Cells by budget, behind one context."""
    clock = CLOCKS["cpu"]
    bench = Bench(model, {name: model}, context, clock)
    trees = {budget: tree_of(BLOCK, budget) for budget in budgets}
    runs = {budget: (bench.exact(name, tree), bench.naive(tree)) for budget, tree in trees.items()}
    of_trees = {budget: reference_bookkeeping(budget, BLOCK, context, rounds, clock) for budget in budgets}
    cells, cache, bare = {budget: Cell() for budget in budgets}, bench.copied_cache(), bench.copied_cache()
    with torch.inference_mode(), parts_timed(model, clock) as spent:
        for number in range(rounds + 1):
            for budget in budgets if number % 2 else reversed(budgets):
                exact, naive = runs[budget]
                spent.clear()
                taken = exact(cache)
                inside = dict(spent)
                other = naive(bare)
                if not number:
                    continue
                cell = cells[budget]
                cell.exact.append(taken.total)
                cell.naive.append(other.total)
                of_masks = min(mask_time(model, trees[budget], context, clock), taken.total - inside["all"])
                cell.parts["attention"].append(inside.get("attention", 0.0))
                cell.parts["mixers"].append(inside.get("mixers", 0.0))
                cell.parts["rest of model"].append(
                    inside["all"] - inside.get("attention", 0.0) - inside.get("mixers", 0.0)
                )
                cell.parts["masks"].append(of_masks)
                cell.parts["bookkeeping"].append(taken.total - inside["all"] - of_masks + of_trees[budget])
    return cells


def mask_time(model: Any, tree: Tree, context: int, clock: Callable[[], float]) -> float:
    """Milliseconds for reading the tree from a mask as callers make it, and for making the model's masks."""
    device = torch.device("cpu")
    given = tree_masks(object(), tree, context, torch.float32, device)
    positions = (context + torch.tensor(tree.depths))[None]
    begun = clock()
    read = read_tree(given, context, tree.size, positions)
    tree_masks(plan_of(model).facts.config, read, context, torch.float32, device)
    return 1e3 * (clock() - begun)


@contextmanager
def parts_timed(model: Any, clock: Callable[[], float]) -> Iterator[dict[str, float]]:
    """Milliseconds inside the target ("all"), its attention modules and its mixers, added up until cleared."""
    mixers = {mixer.module for mixer in plan_of(model).facts.mixers.found}
    innermost = [
        module
        for module in model.modules()
        if isinstance(getattr(module, "layer_idx", None), int)
        and not any(hasattr(child, "layer_idx") for child in module.modules() if child is not module)
    ]
    spent: dict[str, float] = defaultdict(float)
    begun: dict[nn.Module, float] = {}
    handles = []

    def timed(module: nn.Module, name: str) -> None:
        def before(*_: Any) -> None:
            begun[module] = clock()

        def after(*_: Any) -> None:
            spent[name] += 1e3 * (clock() - begun[module])

        handles.extend([module.register_forward_pre_hook(before), module.register_forward_hook(after)])

    timed(model, "all")
    for module in innermost:
        if module not in mixers:
            timed(module, "attention")
    for module in mixers:
        timed(module, "mixers")
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tiny model, two contexts, two budgets: does it run?")
    parser.add_argument("--models", nargs="+", choices=list(KINDS), default=["qwen3", "qwen3_5", "falcon_h1", "jamba"])
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS)
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--svg", help="where to write the plot")
    return parser.parse_args()


if __name__ == "__main__":
    main()
