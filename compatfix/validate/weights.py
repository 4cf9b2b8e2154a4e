"""Validation on real weights: the checkpoint is complete, the tree is lossless on it, the draft is worth something.

The same runs as on the tiny model, with the real draft in the oracle's place; its speed is measured apart from them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from compatfix.errors import UsageError
from compatfix.memory_plan import RunPlan, gigabytes
from compatfix.serial import to_plain
from compatfix.validate.bench import CHAIN, DEFAULT_LOADER, Bench, chosen
from compatfix.validate.bf16 import compare_with_noise
from compatfix.validate.checkpoint import check_checkpoint, weight_bytes
from compatfix.validate.device_map import read_device_map
from compatfix.validate.devices import absent, best_device, input_device
from compatfix.validate.entries import TreeError
from compatfix.validate.kernels import what_ran
from compatfix.validate.load_model import Incomplete, check_buffers, check_values, load, loading
from compatfix.validate.load_tree import load_tree
from compatfix.validate.measure import run_measure
from compatfix.validate.noisy_faults import run_noisy_faults
from compatfix.validate.plain import text_config
from compatfix.validate.room import check_room
from compatfix.validate.sampler import Sampler
from compatfix.validate.tally import histogram, per_position

TEXTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "List the planets of the solar system, with one sentence about each.",
    "Explain why the sky is blue to a child.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey?",
    "Translate into French: the library closes at six on Sundays.",
    "Sort these numbers, largest first: 17, 4, 42, 8, 23.",
    "Write a short letter to a neighbour whose dog barks at night.",
    "What is the difference between a list and a tuple in Python?",
)


class WeightsBench(Bench):
    """A bench whose prompts are text where there is a tokenizer."""

    prompts: list[list[int]]
    surplus: list[str]
    missing: list[str]
    plan: RunPlan | None

    def prompt(self, index: int) -> list[int]:
        return self.prompts[index % len(self.prompts)] if self.prompts else super().prompt(index)


def load_bench(args: dict[str, Any], progress: Callable[..., None]) -> WeightsBench:
    """Loads target and draft with the classes that the tree asks for. Raises TreeError, Incomplete."""
    import transformers

    tree = load_tree(Path(args["tree"]), chosen(args))
    try:
        check_checkpoint(args["target"], args.get("draft"))
    except UsageError as error:
        raise Incomplete(str(error)) from error
    target_dir, draft_dir = Path(args["target"]), Path(args["draft"])
    dtype = getattr(torch, args["dtype"]) if args.get("dtype") else "auto"
    placing, device = _placing(args), args.get("device") or best_device()
    if (why := absent(device)) is not None:
        raise Incomplete(why, hint="give another --device")
    name = args.get("loader") or tree.loader or DEFAULT_LOADER
    loader: Any = getattr(transformers, name)
    # Where parts go to the disk there is always room.
    plan = None if "device_map" in placing else check_room(args, name, device)
    progress(f"loading the target ({gigabytes(weight_bytes(target_dir))})", 0, None)
    target, surplus = load(loader, target_dir, dtype, "target", progress, **placing)
    check_values(target, target_dir)
    progress(f"loading the draft ({gigabytes(weight_bytes(draft_dir))})", 0, None)
    draft_class: Any = tree.draft_class
    missing: list[str] | None = [] if args.get("incomplete_draft") else None
    draft, draft_surplus = load(draft_class, draft_dir, target.dtype, "draft", progress, missing)
    if missing is None:
        check_buffers(draft, "draft")
    options = getattr(draft.config, "dflash_config", None) or {}
    mask = options.get("mask_token_id", getattr(draft.config, "mask_token_id", None))
    block = getattr(draft.config, "block_size", options.get("block_size"))
    if mask is None or block is None:
        raise TreeError("CF406" if mask is None else "CF407", "the draft's config has no mask_token_id or block_size")
    if "device_map" not in placing:
        target = target.to(device)
    bench = WeightsBench(
        tree=tree,
        target=target.eval(),
        draft=draft.to(input_device(target)).eval(),
        block=int(block),
        mask=int(mask),
        plain_tokens=without_mask(int(mask), int(text_config(target).vocab_size)),
        seed=args["seed"],
    )
    bench.prompts = _tokenised(target_dir, args.get("texts") or ())
    bench.surplus = [*surplus, *draft_surplus]
    bench.missing = missing or []
    bench.plan = plan
    return bench


def _placing(args: Mapping[str, Any]) -> dict[str, Any]:
    """What from_pretrained is told of the attention implementation and of where the target's parts go."""
    told: dict[str, Any] = {}
    if args.get("attn"):
        told["attn_implementation"] = args["attn"]
    if args.get("device_map"):
        if importlib.util.find_spec("accelerate") is None:
            raise Incomplete("--device-map needs accelerate, which is not installed", hint="pip install accelerate")
        told |= {"device_map": read_device_map(args["device_map"]), "offload_folder": args["scratch"]}
    return told


def without_mask(mask: int, vocabulary: int) -> range:
    """The longer side of the vocabulary, seen from the mask token."""
    return range(1, min(mask, vocabulary)) if mask > vocabulary // 2 else range(mask + 1, vocabulary)


def run_weights(bench: Bench, args: dict[str, Any], report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Real target, real draft: losslessness with margins, and accepted lengths. Watched, so that nothing is timed."""
    assert isinstance(bench, WeightsBench)
    prompts, modes = _prompts(bench, args), bench.modes(args["budgets"])
    table = compare_with_noise(bench, modes, prompts, args["tokens"], None, report, "weights")
    for row in table["modes"]:
        _summarise(row)
    # A tree shows everything that a chain shows, and a larger one has more siblings.
    shown = max(modes, key=lambda mode: mode.budget or 0)
    broken = any(row["error"] for row in table["modes"])
    table["faults"] = [] if broken else run_noisy_faults(bench, shown, prompts, None, report)
    has_tokenizer = bool(bench.prompts)
    plan = None if bench.plan is None else to_plain(bench.plan)
    told = {"plan": plan, "surplus": bench.surplus, "text_prompts": has_tokenizer, "baseline": CHAIN.name}
    return {**table, **what_ran(bench.target), **told}


def run_timed(bench: Bench, args: dict[str, Any], report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """The same prompts, timed: `measure.run_measure`, with the sampling that was asked for."""
    assert isinstance(bench, WeightsBench)
    sampler = None if args.get("temperature") is None else Sampler(args["temperature"], args["top_p"], args["top_k"])
    prompts, limit = _prompts(bench, args), args.get("seconds")
    return run_measure(bench, prompts, args["budgets"], args["tokens"], args["repetitions"], sampler, limit, report)


def _prompts(bench: WeightsBench, args: dict[str, Any]) -> list[list[int]]:
    return [bench.prompt(index) for index in range(args["prompts"])]


def _summarise(row: dict[str, Any]) -> None:
    lengths = row.pop("lengths")
    row["accepted_length"] = fmean(lengths) if lengths else None
    row["histogram"], row["per_position"] = histogram(lengths), per_position(lengths)
    row["forwards_per_token"] = row["forwards"] / row["tokens"] if row["tokens"] else None


def _tokenised(directory: Path, texts: Sequence[str]) -> list[list[int]]:
    """`texts`, or else the tool's own, as ids. Without a tokenizer there are none, which `texts` cannot do without."""
    if not any((directory / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        if texts:
            raise Incomplete(f"prompts were given as text, and {directory} has no tokenizer")
        return []
    from transformers import AutoTokenizer

    with loading("target's tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    prompts = [list(tokenizer.encode(text)) for text in texts or TEXTS]
    empty = [number for number, prompt in enumerate(prompts, start=1) if not prompt]
    if empty:
        raise Incomplete(f"prompt {empty[0]} has no token in the target's vocabulary")
    return prompts
