"""What exact verification costs: verify + commit of each strategy against one naive forward over the same nodes.

The naive forward gives each node the ancestor mask and nothing else: right on attention-only models, wrong wherever a
layer keeps a state, and the cost that no strategy should exceed. All candidates run in turn, round after round, so that
a busy machine slows all of them; figures are medians, ratios are medians of the ratios within a round. The clock is the
process's own CPU time, which on one thread is the wall time of an idle machine. Nothing is asserted about time.

    python benchmarks/verify_cost.py [--quick] [--large] [--models qwen3_5 …] [--strategies …] [--clock wall]
"""

from __future__ import annotations

import argparse
import copy
import inspect
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import compatfix.runtime as runtime
from compatfix.runtime.masks import tree_masks
from compatfix.runtime.slots import Snapshot
from compatfix.runtime.strategies import STRATEGIES
from compatfix.runtime.trees import Tree

SHAPES = [(8, 32), (8, 64), (16, 32), (16, 64)]
VOCABULARY = 2048
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
Times = dict[str, list[tuple[float, float]]]


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    hidden, layers, context = (64, 4, 32) if options.quick else (1024, 12, 1024) if options.large else (512, 8, 256)
    rounds = 2 if options.quick else options.rounds
    shapes = SHAPES[:1] if options.quick else SHAPES
    print(f"hidden {hidden}, {layers} layers, context {context}, float32, {options.threads} thread(s), {rounds} rounds")
    print("ms: median [first to third quartile] of verify + commit; ratio: to the naive forward of the same round")
    print(f"\n{'model':10} {'block':>5} {'budget':>6} {'method':16} {'ms':>20} {'ratio':>18} {'commit ms':>9}")
    for kind in options.models:
        model = build(kind, hidden, layers)
        targets = prepared(model, options.strategies)
        for block, budget in shapes:
            tree = tree_of(block, budget)
            times = measured(model, targets, tree, context, rounds, CLOCKS[options.clock])
            naive = [total for total, _ in times["naive forward"]]
            for name, pairs in times.items():
                totals, commits = [total for total, _ in pairs], [commit for _, commit in pairs]
                ratios = [total / one for total, one in zip(totals, naive, strict=True)]
                print(
                    f"{kind:10} {block:5} {budget:6} {name:16} {spread(totals, '.1f'):>20} {spread(ratios, '.2f'):>18} "
                    f"{statistics.median(commits):9.2f}",
                    flush=True,
                )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tiny model and two rounds: does it run?")
    parser.add_argument("--large", action="store_true", help="hidden 1024, 12 layers, context 1024")
    parser.add_argument(
        "--models", nargs="+", choices=["qwen3", "qwen3_5", "lfm2"], default=["qwen3", "qwen3_5", "lfm2"]
    )
    parser.add_argument("--strategies", nargs="+", default=[strategy.name for strategy in STRATEGIES])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="cpu")
    return parser.parse_args()


def build(kind: str, hidden: int, layers: int) -> Any:
    """A random target; recurrent layers make up three quarters of a hybrid, as in the published models."""
    import transformers

    torch.manual_seed(0)
    heads = max(2, hidden // 64)
    base = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "head_dim": 64,
        "tie_word_embeddings": False,
    }
    if kind == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**base))
    elif kind == "lfm2":
        types = ["full_attention" if i % 4 == 3 else "conv" for i in range(layers)]
        model = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**base, layer_types=types))
    else:
        from transformers.models.qwen3_5 import configuration_qwen3_5 as configs
        from transformers.models.qwen3_5 import modeling_qwen3_5 as models

        linear = {
            "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_num_key_heads": max(1, heads // 2),
            "linear_num_value_heads": heads,
        }
        model = models.Qwen3_5ForCausalLM(configs.Qwen3_5TextConfig(**base, **linear))
    return model.eval()


def prepared(model: Any, names: list[str]) -> dict[str, Any]:
    """The model once per strategy that is exact on it: shallow copies, which share everything but the choice."""
    targets = {}
    for name in names:
        target = copy.copy(model)
        try:
            runtime.prepare(target, name)
        except runtime.RuntimeRefusal:
            continue
        targets[name] = target
    return targets


def tree_of(block: int, budget: int) -> Tree:
    """A tree of `budget` nodes and the root, `block` deep: a spine, and siblings of its nodes with short tails.

    Such is the shape that a draft of `block` tokens with a fixed node budget gives: broad at the top, thin at the end.
    """
    parents = list(range(-1, block - 1))
    generator = torch.Generator().manual_seed(0)
    depths = list(range(block))
    while len(parents) < budget + 1:
        # Of two random nodes the shallower one gets a child.
        first, second = torch.randint(0, len(parents), (2,), generator=generator).tolist()
        parent = min(first, second, key=lambda node: depths[node])
        if depths[parent] < block - 1:
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return Tree(tuple(parents))


def measured(
    model: Any, targets: dict[str, Any], tree: Tree, context: int, rounds: int, clock: Callable[[], float]
) -> Times:
    """Milliseconds of (verify + commit, commit) per method and round."""
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(1, VOCABULARY, (1, context), generator=generator)
    ids = torch.randint(1, VOCABULARY, (1, tree.size), generator=generator)
    mask = tree_masks(object(), tree, context, torch.float32, ids.device)
    positions = (context + torch.tensor(tree.depths))[None]
    # What a round accepts: half of the way to the deepest node, the middle of the range.
    path = tree.path_to(tree.depths.index(max(tree.depths)))
    path = path[: max(1, len(path) // 2)]
    with torch.inference_mode():
        caches = {}
        for name in ["naive forward", *targets]:
            caches[name] = runtime.new_cache(model)
            runtime.verify(model, prompt, past_key_values=caches[name], use_cache=True)

        def naive(cache: Any) -> tuple[float, float]:
            keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
            before = Snapshot(cache, own_states=True)
            begun = clock()
            model(ids, attention_mask=mask, position_ids=positions, use_cache=True, **{keyword: cache})
            taken = clock() - begun
            before.restore(cache)
            return 1e3 * taken, 0.0

        def exact(name: str) -> Callable[[Any], tuple[float, float]]:
            def once(cache: Any) -> tuple[float, float]:
                before = Snapshot(cache, own_states=True)
                begun = clock()
                runtime.verify(
                    targets[name],
                    ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                )
                verified = clock()
                runtime.commit(cache, path)
                done = clock()
                before.restore(cache)
                return 1e3 * (done - begun), 1e3 * (done - verified)

            return once

        runs = {"naive forward": naive, **{name: exact(name) for name in targets}}
        times: Times = {name: [] for name in runs}
        for round_number in range(rounds + 1):
            order = list(runs) if round_number % 2 else list(reversed(runs))
            for name in order:
                pair = runs[name](caches[name])
                if round_number:  # the first one warms up
                    times[name].append(pair)
    return times


def spread(values: list[float], form: str) -> str:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    return f"{statistics.median(ordered):{form}} [{low:{form}}–{high:{form}}]"


if __name__ == "__main__":
    main()
