"""Validation on real weights: the checkpoint is complete, the tree is lossless on it, the draft is worth something.

The same runs as on the tiny model, with the real draft in the oracle's place; its speed is measured apart from them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from compatfix.errors import UsageError
from compatfix.validate.bench import CHAIN, DEFAULT_LOADER, Bench, chosen
from compatfix.validate.bf16 import compare_with_noise
from compatfix.validate.checkpoint import check_checkpoint, weight_bytes
from compatfix.validate.device_map import read_device_map
from compatfix.validate.devices import best_device, input_device
from compatfix.validate.entries import TreeError
from compatfix.validate.kernels import what_ran
from compatfix.validate.load_tree import load_tree
from compatfix.validate.measure import run_measure
from compatfix.validate.noisy_faults import run_noisy_faults
from compatfix.validate.plain import text_config
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
GIB = 1 << 30


class Incomplete(Exception):
    """The checkpoint cannot be judged: it does not load, keys are missing or of another shape, or it does not fit.

    `detail` may hold a "hint": what to do, where the code's own advice does not fit.
    """

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.detail = detail


class WeightsBench(Bench):
    """A bench whose prompts are text where there is a tokenizer."""

    prompts: list[list[int]]
    surplus: list[str]
    missing: list[str]

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
    _check_memory(target_dir, draft_dir)
    dtype = getattr(torch, args["dtype"]) if args.get("dtype") else "auto"
    placing = _placing(args)
    loader: Any = getattr(transformers, args.get("loader") or tree.loader or DEFAULT_LOADER)
    progress(f"loading the target ({weight_bytes(target_dir) / GIB:.2f} GiB)", 0, 2)
    target, surplus = _load(loader, target_dir, dtype, "target", **placing)
    progress(f"loading the draft ({weight_bytes(draft_dir) / GIB:.2f} GiB)", 1, 2)
    draft_class: Any = tree.draft_class
    missing: list[str] | None = [] if args.get("incomplete_draft") else None
    draft, draft_surplus = _load(draft_class, draft_dir, target.dtype, "draft", missing)
    options = getattr(draft.config, "dflash_config", None) or {}
    mask = options.get("mask_token_id", getattr(draft.config, "mask_token_id", None))
    block = getattr(draft.config, "block_size", options.get("block_size"))
    if mask is None or block is None:
        raise TreeError("CF406" if mask is None else "CF407", "the draft's config has no mask_token_id or block_size")
    if "device_map" not in placing:
        target = target.to(args.get("device") or best_device())
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
    progress("loaded", 2, 2)
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
    told = {"surplus": bench.surplus, "text_prompts": has_tokenizer, "baseline": CHAIN.name}
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


def _load(
    loader: Any, directory: Path, dtype: Any, what: str, tolerated: list[str] | None = None, **placing: Any
) -> tuple[Any, list[str]]:
    """The model and its surplus keys. Missing keys are an error, or are added to `tolerated` where that is given."""
    with loading(what):
        model, info = loader.from_pretrained(
            directory, dtype=dtype, output_loading_info=True, local_files_only=True, **placing
        )
    missing = sorted(info.get("missing_keys", ()))
    mismatched = sorted(str(entry) for entry in info.get("mismatched_keys", ()))
    if tolerated is not None and not mismatched:
        tolerated += missing
    elif missing or mismatched:
        named = (missing or mismatched)[0]
        kind = "missing" if missing else "of another shape"
        count = len(missing) + len(mismatched)
        raise Incomplete(
            f"{count} keys of the {what} are {kind} for {type(model).__name__}: {named}, …",
            missing=missing[:20],
            mismatched=mismatched[:20],
        )
    return model, sorted(info.get("unexpected_keys", ()))


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Whatever the library raises over a checkpoint is said of the checkpoint; only want of memory is not its fault."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines()
        message = lines[0] if lines else ""
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in message:
            raise
        raise Incomplete(f"the {what} did not load: {type(error).__name__}: {message}") from error


def _check_memory(*directories: Path) -> None:
    needed = sum(map(weight_bytes, directories))
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return
    if needed > free:
        raise Incomplete(
            f"the checkpoints need {needed / GIB:.1f} GiB and {free / GIB:.1f} GiB are free",
            needed=needed,
            hint="run on a machine with that much free memory",
        )


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
