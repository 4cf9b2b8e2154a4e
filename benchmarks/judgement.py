"""Is the judgement right? Faults planted on purpose, and right code, through the gate's own comparisons and rule.

A run is one mode on two prompts of one target: judged by its tokens, the logits of drafted nodes, the context handed to
the draft and the draft's own output, against noise measured in the same run (compatfix/validate/rounding.py). Targets
are tiny models of several kinds with random weights, an oracle draft and a seed each, in bf16; and the trained pair in
the repository with its real draft. Scope code's comparisons in float32 are run on the same tiny targets.

A planted fault that changes nothing on a run, bit by bit (tokens, logits, context, draft), is counted apart.

    python benchmarks/judgement.py [--seeds 10] [--fault-seeds 4] [--first-seed 0] [--targets qwen3 …]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from compatfix.rewrites import patch_copy
from compatfix.validate import faults, weights
from compatfix.validate.bench import CHAIN, Bench, Mode, build_bench
from compatfix.validate.bf16 import compare_with_noise
from compatfix.validate.noisy_faults import ON_WEIGHTS, run_noisy_faults
from compatfix.validate.oracle import ORACLE, Profile
from compatfix.validate.prompt_file import read_prompts
from compatfix.validate.rounding import MEAN_FLOOR, spread_of
from tests.runtime.zoo import BASE, HYBRID, LINEAR, MAMBA_2, MROPE, WINDOWED

ROOT = Path(__file__).parents[1]
TOKENS, PROMPTS = 24, 2
BUDGETS = (8, 32)
# Of 21 and 30 tokens: past the windows of tiny models.
LONG_PROMPTS = (904, 908)
PAIR = ROOT / "examples" / "pair"
EXAMPLES = ROOT / "examples" / "targets"
# Kinds of layer: full attention, a gated delta hybrid, windows, windows with sinks, Mamba-2 beside attention, short
# convolutions. The first two have a draft config of their own.
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3_5": {},
    "gemma3": {"model_type": "gemma3_text", **BASE, "num_hidden_layers": 3, "sliding_window": 8}
    | {"layer_types": WINDOWED, "query_pre_attn_scalar": 16},
    "gpt_oss": {"model_type": "gpt_oss", **BASE, "num_hidden_layers": 3, "sliding_window": 8}
    | {"layer_types": WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "falcon_h1": {"model_type": "falcon_h1", **BASE, **MAMBA_2, "num_hidden_layers": 2}
    | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_n_groups": 1},
    "qwen3_next": {"model_type": "qwen3_next", **BASE, **LINEAR, **MROPE, "num_experts": 4}
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
}
assert len(HYBRID) == LINEAR["num_hidden_layers"]
OF_KIND = {"qwen3": "qwen3-8b", "qwen3_5": "qwen3.6-27b"}


@dataclass
class Counts:
    """Of one target."""

    right: int = 0
    alarms: list[str] = field(default_factory=list)
    planted: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    idle: Counter[str] = field(default_factory=Counter)
    # Planted faults by name, seed and mode: in which dtypes they were caught. A gate plants each in both.
    legs: dict[tuple[str, int, str], dict[str, bool]] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    leaps: int = 0
    # Largest ratio of an error to its noise, over right runs and over caught and missed ones.
    mean_ratio: dict[str, float] = field(default_factory=dict)
    largest_ratio: dict[str, float] = field(default_factory=dict)


def main() -> None:
    options = parsed()
    # What runs here is being judged; its line about earlier verdicts says nothing.
    os.environ["COMPATFIX_ATTEST"] = "off"
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        patch_copy(ROOT / "vendor" / "ddtree_ref", tree)
        found = {}
        for name in options.targets:
            found[name] = judged(name, tree, Path(scratch), options)
            say(f"{name}: {line_of(found[name])} ({time.perf_counter() - began:.0f} s)")
    print(table(found))
    print(fault_table(found))
    for name, counts in found.items():
        for text in (*counts.alarms, *counts.unseen):
            print(f"{name}: {text}")
    print(f"{time.perf_counter() - began:.0f} s, {torch.get_num_threads()} thread")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="right runs: seeds per target, three modes each")
    parser.add_argument("--fault-seeds", type=int, default=4, help="planted runs: seeds per target, two modes each")
    parser.add_argument("--first-seed", type=int, default=0, help="other weights and texts; the pair has but one set")
    parser.add_argument("--targets", nargs="+", default=[*KINDS, "pair"], choices=[*KINDS, "pair"])
    return parser.parse_args()


def judged(name: str, tree: Path, scratch: Path, options: argparse.Namespace) -> Counts:
    counts = Counts()
    profile = None if name == "pair" else ORACLE
    first = 0 if name == "pair" else options.first_seed
    for seed, bench, prompts in benches(name, tree, scratch, first, options.seeds):
        right(counts, bench, prompts, profile, seed)
        if seed < first + options.fault_seeds:
            for mode in (CHAIN, Mode("tree", BUDGETS[-1])):
                planted(counts, bench, mode, prompts, profile, seed)
    if name != "pair":
        for seed in range(first, first + options.fault_seeds):
            exact = build_bench(arguments(name, tree, scratch, seed))
            for mode in (CHAIN, Mode("tree", BUDGETS[-1])):
                enter(counts, faults.run_faults(exact, [mode], quiet)["faults"], "float32", seed)
    return counts


def benches(
    name: str, tree: Path, scratch: Path, first: int, seeds: int
) -> Iterator[tuple[int, Bench, list[list[int]]]]:
    """In bf16: by seed, with the prompts of its run. The pair has one set of weights, and prompts instead of seeds."""
    if name != "pair":
        for seed in range(first, first + seeds):
            bench = build_bench(arguments(name, tree, scratch, seed), dtype=torch.bfloat16)
            yield seed, bench, [bench.prompt(index) for index in LONG_PROMPTS]
        return
    texts = read_prompts(str(PAIR / "prompts.jsonl"))
    args = {"tree": str(tree), "target": str(PAIR / "target"), "draft": str(PAIR / "draft"), "seed": 0, "texts": texts}
    bench = weights.load_bench(args, quiet)
    for seed in range(min(seeds, len(texts) // PROMPTS)):
        yield seed, bench, [bench.prompt(seed * PROMPTS + index) for index in range(PROMPTS)]


def arguments(name: str, tree: Path, scratch: Path, seed: int) -> dict[str, Any]:
    if name in OF_KIND:
        target = EXAMPLES / OF_KIND[name]
        draft = str(target) + "-dflash"
    else:
        target, draft = scratch / name, None
        target.mkdir(exist_ok=True)
        (target / "config.json").write_text(json.dumps(KINDS[name]))
    return {"tree": str(tree), "target": str(target), "draft": draft, "seed": seed}


def right(counts: Counts, bench: Bench, prompts: Sequence[list[int]], profile: Profile | None, seed: int) -> None:
    modes = bench.modes(BUDGETS)
    table = compare_with_noise(bench, modes, prompts, TOKENS, profile, quiet, "")
    for row in table["modes"]:
        if row["mode"] == "plain":
            continue
        counts.right += 1
        where = f"false alarm, seed {seed}, {row['mode']}"
        if row["error"]:
            counts.alarms.append(f"{where}: {row['error']['type']}: {row['error']['message']}")
        counts.alarms += [f"{where}: token {d}" for d in row["differences"] if d["kind"] == "corruption"]
        for check, result in row["checks"].items():
            if result["why"]:
                counts.alarms.append(f"{where}: {check}: {result['why']}")
            counts.leaps += result["leaps"]
            errors, noise = spread_of(result), spread_of(result["noise"])
            means = errors.mean / max(noise.mean, MEAN_FLOOR * result["unit"])
            largest = errors.largest / max(noise.largest, result["unit"])
            counts.mean_ratio[check] = max(counts.mean_ratio.get(check, 0.0), means)
            counts.largest_ratio[check] = max(counts.largest_ratio.get(check, 0.0), largest)


def planted(
    counts: Counts, bench: Bench, mode: Mode, prompts: Sequence[list[int]], profile: Profile | None, seed: int
) -> None:
    found = run_noisy_faults(bench, mode, prompts, profile, quiet, names=ON_WEIGHTS, tokens=TOKENS)
    enter(counts, found, "bf16", seed)


def enter(counts: Counts, found: Sequence[dict[str, Any]], leg: str, seed: int) -> None:
    for entry in found:
        name = entry["name"]
        if not entry["applicable"]:
            counts.idle[name] += entry["reason"] == faults.IDLE
            continue
        counts.planted[name] += 1
        counts.caught[name] += entry["caught"]
        counts.legs.setdefault((name, seed, entry["mode"]), {})[leg] = entry["caught"]
        if not entry["caught"]:
            seen = {check: (r["mean"], r["noise"]["mean"]) for check, r in entry.get("checks", {}).items()}
            counts.unseen.append(f"unseen in {leg}, seed {seed}, {entry['mode']}: {name} {seen or ''}")


def missed(counts: Counts, name: str | None = None) -> int:
    """Faults that were caught in no dtype in which they were planted."""
    return sum(not any(legs.values()) for key, legs in counts.legs.items() if name in (None, key[0]))


def line_of(counts: Counts) -> str:
    return (
        f"{counts.right} right runs, {len(counts.alarms)} false alarms; {sum(counts.planted.values())} planted, "
        f"{sum(counts.caught.values())} caught, {missed(counts)} missed, {sum(counts.idle.values())} idle; "
        f"{counts.leaps} leaps; "
        f"right runs, worst multiples of noise: mean {ratios(counts.mean_ratio)}; "
        f"largest {ratios(counts.largest_ratio)}"
    )


def ratios(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())


def table(found: dict[str, Counts]) -> str:
    head = ["target", "right runs", "false alarms", "planted", "caught", "unseen in a dtype", "missed", "no effect"]
    head += ["mean", "largest"]
    rows = [
        [
            name,
            counts.right,
            len(counts.alarms),
            sum(counts.planted.values()),
            sum(counts.caught.values()),
            len(counts.unseen),
            missed(counts),
            sum(counts.idle.values()),
            f"{max(counts.mean_ratio.values()):.2f}",
            f"{max(counts.largest_ratio.values()):.2f}",
        ]
        for name, counts in found.items()
    ]
    sums = [sum(int(row[column]) for row in rows) for column in range(1, 8)]
    worst = [f"{max(float(row[column]) for row in rows):.2f}" for column in (8, 9)]
    return markdown(head, [*rows, ["all", *sums, *worst]])


def fault_table(found: dict[str, Counts]) -> str:
    rows = []
    for name in faults.PLANTED:
        planted = sum(counts.planted[name] for counts in found.values())
        caught = sum(counts.caught[name] for counts in found.values())
        idle = sum(counts.idle[name] for counts in found.values())
        if planted or idle:
            lost = sum(missed(counts, name) for counts in found.values())
            rows.append([name, planted, caught, planted - caught, lost, idle])
    return markdown(["fault", "planted", "caught", "unseen in a dtype", "missed", "no effect"], rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def quiet(stage: str, done: int | None = None, total: int | None = None) -> None:
    """Progress is not wanted here."""


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
