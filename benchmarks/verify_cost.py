"""What exact verification costs: verify + commit of each strategy against one naive forward over the same nodes.

The naive forward gives each node the ancestor mask and nothing else: right on attention-only models, wrong wherever a
layer keeps a state, and the cost that no strategy should exceed. All candidates run in turn, round after round, so that
a busy machine slows all of them; figures are medians, ratios are medians of the ratios within a round. The clock is the
process's own CPU time, which on one thread is the wall time of an idle machine. Nothing is asserted about time.

Bookkeeping is what a round spends outside the target's forward: reading the mask, making masks and records, committing,
and what the reference tree spends on building, compiling and walking a tree of that budget; its share is of all that
and the forward (a draft's own forward is left out). Host: how often a round would make a host wait for its device,
looks at values plus uploads (see common/transfers.py).

    python benchmarks/verify_cost.py [--quick] [--large] [--models qwen3_5 …] [--strategies …] [--clock wall]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.rounds import CLOCKS, NAIVE, Bench, Taken, reference_bookkeeping, spread, tree_of
from benchmarks.common.targets import KINDS, build, prepared
from compatfix.runtime.strategies import STRATEGIES
from compatfix.runtime.trees import Tree
from compatfix.validate.transfers import counted_transfers

SHAPES = [(8, 32), (8, 64), (16, 32), (16, 64)]
HEAD = (
    f"{'model':12} {'block':>5} {'budget':>6} {'method':16} {'ms':>22} {'ratio':>18} "
    f"{'commit ms':>9} {'bookkeeping':>11} {'host':>5}"
)


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    hidden, layers, context = (64, 4, 32) if options.quick else (1024, 12, 1024) if options.large else (512, 8, 256)
    rounds = 2 if options.quick else options.rounds
    shapes = (
        SHAPES[:1]
        if options.quick
        else [shape for shape in SHAPES if options.budgets is None or shape[1] in options.budgets]
    )
    clock = CLOCKS[options.clock]
    print(f"hidden {hidden}, {layers} layers, context {context}, float32, {options.threads} thread(s), {rounds} rounds")
    print("ms: median [first to third quartile] of verify + commit; ratio: to the naive forward of the same round\n")
    print(HEAD)
    for kind in options.models:
        model = build(kind, hidden, layers)
        targets = prepared(model, options.strategies)
        bench = Bench(model, targets, context, clock)
        for block, budget in shapes:
            tree = tree_of(block, budget)
            taken = bench.rounds(tree, rounds)
            of_tree = reference_bookkeeping(budget, block, context, rounds, clock)
            for name, rounds_of in taken.items():
                told = row(rounds_of, taken[NAIVE])
                if name != NAIVE:
                    told += f" {outside(rounds_of, of_tree):9.1f} % {host_waits(bench, name, tree):>5}"
                print(f"{kind:12} {block:5} {budget:6} {name:16} {told}", flush=True)


def row(taken: list[Taken], naive: list[Taken]) -> str:
    totals = [one.total for one in taken]
    ratios = [one.total / other.total for one, other in zip(taken, naive, strict=True)]
    commit = statistics.median(one.commit for one in taken)
    return f"{spread(totals, '.1f'):>22} {spread(ratios, '.2f'):>18} {commit:9.2f}"


def outside(taken: list[Taken], of_tree: float) -> float:
    """Percent of a round, the tree's own bookkeeping included, that is no forward of the target."""
    return 100 * statistics.median((one.outside + of_tree) / (one.total + of_tree) for one in taken)


def host_waits(bench: Bench, name: str, tree: Tree) -> str:
    once, cache = bench.exact(name, tree), bench.copied_cache()
    with torch.inference_mode(), counted_transfers() as found:
        once(cache)
    return f"{sum(found.reads.values())}+{sum(found.uploads.values())}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tiny model and two rounds: does it run?")
    parser.add_argument("--large", action="store_true", help="hidden 1024, 12 layers, context 1024")
    parser.add_argument("--models", nargs="+", choices=list(KINDS), default=list(KINDS))
    names = [strategy.name for strategy in STRATEGIES]
    parser.add_argument(
        "--strategies", nargs="+", choices=names, default=names[: names.index("paths")], help="without paths and steps"
    )
    parser.add_argument("--budgets", nargs="+", type=int, default=None, help="of 32 and 64; both without it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
