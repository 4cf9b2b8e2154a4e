"""What a verify takes in memory beside the weights and the cache, against budget and context.

peak: the most that is allocated at once between the start of a verify and the end of its commit; held: what is still
alive between the two, the output and the new tokens' keys and values included, as after a naive forward. Counted by the
CPU's allocator (see common/allocations.py), so a figure does not depend on the machine's load; an accelerator's kernels
have other temporaries.

    python benchmarks/memory.py [--quick] [--models qwen3_5 …] [--budgets 8 64 256] [--contexts 256 8192]
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import compatfix.runtime as runtime
from benchmarks.common.allocations import allocations
from benchmarks.common.rounds import CLOCKS, NAIVE, Bench, tree_of
from benchmarks.common.targets import KINDS, build, prepared
from compatfix.runtime.slots import state_slots, token_slots

BUDGETS, CONTEXTS = [8, 24, 64, 128, 256], [256, 1024, 4096, 8192]
BLOCK = 16
# States of one layer for which there is room under the limit: twice what a tree of BLOCK depths needs at least.
ROOM = 2 * (BLOCK + 1)
# Paths copies the cache once per leaf; beyond so many bytes it is not run.
MOST = 1_000_000_000
LIMITED = "mixer levels, limited"
STRATEGIES = ["mask", "gated-delta tree", "kimi-delta tree", "mamba-2 tree", "lightning tree", "conv tree"]


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    hidden, layers = (64, 4) if options.quick else (512, 8)
    budgets, contexts = ([8], [32]) if options.quick else (options.budgets, options.contexts)
    print(f"hidden {hidden}, {layers} layers, block {BLOCK}, float32; MB beside weights and cache")
    for kind in options.models:
        model = build(kind, hidden, layers)
        targets = prepared(model, [*STRATEGIES, "mixer levels", "paths"])
        if "paths" in targets:
            runtime.prepare(targets["paths"], "paths", memory_limit=MOST)
        for context in contexts:
            bench = Bench(model, targets, context, CLOCKS["cpu"])
            cache = bench.copied_cache()
            if "mixer levels" in targets:
                bench.targets[LIMITED] = limited(model, cache)
            print(f"\n{kind}, context {context}: cache {megabytes(size_of(cache))} MB; states {largest(cache)}")
            print(f"{'method':22}" + "".join(f"{f'budget {budget}':>22}" for budget in budgets))
            print(f"{'':22}" + "".join(f"{'peak':>14}{'held':>8}" for _ in budgets))
            for name in [NAIVE, *bench.targets]:
                print(f"{name:22}" + "".join(cell(bench, name, budget) for budget in budgets), flush=True)


def cell(bench: Bench, name: str, budget: int) -> str:
    try:
        peak, held = measured(bench, name, budget)
    except runtime.RuntimeRefusal:
        return f"{f'over {megabytes(MOST)}':>22}"
    return f"{megabytes(peak):>14}{megabytes(held):>8}"


def measured(bench: Bench, name: str, budget: int) -> tuple[int, int]:
    """Bytes at the peak, and held between verify and commit."""
    tree = tree_of(BLOCK, budget)
    verify, commit = bench.halves(name, tree)
    with torch.inference_mode():
        verify(bench.copied_cache())  # what is made once per model is no part of a round
        with allocations() as found:
            cache = bench.copied_cache()
            found.mark("begin")
            output = verify(cache)
            found.mark("verified")
            commit(cache)
            del output
    return found.peak, found.at["verified"]


def limited(model: Any, cache: Any) -> Any:
    target = copy.copy(model)
    runtime.prepare(target, "mixer levels", memory_limit=ROOM * max(of_layers(cache).values()))
    return target


def of_layers(cache: Any) -> dict[int, int]:
    """Bytes of the states of each layer."""
    sizes: dict[int, int] = {}
    for slot in state_slots(cache):
        sizes[slot.layer] = sizes.get(slot.layer, 0) + slot.tensor.nbytes
    return sizes


def largest(cache: Any) -> str:
    sizes = of_layers(cache)
    return f"of {megabytes(max(sizes.values()))} MB in each of {len(sizes)} layers" if sizes else "none"


def size_of(cache: Any) -> int:
    return sum(slot.tensor.nbytes for slot in (*token_slots(cache), *state_slots(cache)))


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one budget, one context: does it run?")
    parser.add_argument("--models", nargs="+", choices=list(KINDS), default=["qwen3", "qwen3_5", "falcon_h1", "jamba"])
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS)
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
