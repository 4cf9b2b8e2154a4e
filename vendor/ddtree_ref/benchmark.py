"""Compares plain decoding, chain verification and tree verification on one target and draft.

Run from this directory:

    python benchmark.py --model-name-or-path TARGET --draft-name-or-path DRAFT --tree-budget 32,64
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import torch
from datasets import load_dataset
from ddtree import ddtree_generate
from dflash import dflash_generate
from loguru import logger
from model import DFlashDraftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

DATASETS = {
    "gsm8k": ("openai/gsm8k", "main", "test", "question"),
    "math500": ("HuggingFaceH4/MATH-500", None, "test", "problem"),
    "humaneval": ("openai/openai_humaneval", None, "test", "prompt"),
}
BUILTIN_PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number, and explain its cost.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Think step by step.",
    "List the planets of the solar system with one sentence about each.",
    "Translate into French, German and Spanish: Good morning, where is the next library?",
)

Method = Callable[[torch.Tensor], SimpleNamespace]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    torch.manual_seed(args.seed)
    target, draft, tokenizer = load_models(args)
    prompts = [encode(tokenizer, text).to(target.device) for text in load_prompts(args)]
    methods = build_methods(args, target, draft, stop_token_ids(target, tokenizer))

    for name, generate in methods.items():
        logger.info("warming up {}", name)
        generate(prompts[0])

    results: dict[str, list[SimpleNamespace]] = {name: [] for name in methods}
    for index, input_ids in enumerate(prompts, start=1):
        for name, generate in methods.items():
            results[name].append(generate(input_ids))
        logger.info("prompt {} of {} done", index, len(prompts))

    report = {name: summarise(runs, results["baseline"]) for name, runs in results.items()}
    for name, numbers in report.items():
        logger.info(
            "{:<12} accepted {:5.2f}  {:7.2f} ms/token  {:5.2f}x  same text {}/{}",
            name,
            numbers["mean_acceptance_length"],
            1e3 * numbers["time_per_output_token"],
            numbers["speedup"],
            numbers["same_as_baseline"],
            numbers["num_prompts"],
        )
    if args.save_path:
        save(args, report)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-name-or-path", required=True, help="the target")
    parser.add_argument("--draft-name-or-path", required=True, help="its DFlash draft")
    parser.add_argument("--block-size", type=int, help="default: the draft config's")
    parser.add_argument(
        "--tree-budget",
        type=parse_budgets,
        default=[32, 64],
        help='nodes per tree, one run for each: "32,64"',
    )
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument(
        "--flash-attn",
        action="store_true",
        help="load the target with FlashAttention; it takes no tree mask, so trees run under sdpa",
    )
    parser.add_argument("--save-path", type=Path, help="write the numbers to this JSON file")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--dataset", choices=sorted(DATASETS))
    prompts.add_argument("--prompt-file", type=Path, help="a text file, one prompt a line")
    parser.add_argument("--num-prompts", type=int, default=16, help="at most this many prompts")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def parse_budgets(text: str) -> list[int]:
    """Reads "32,64"."""
    budgets = [int(part) for part in text.split(",") if part.strip()]
    if not budgets or min(budgets) < 1:
        raise argparse.ArgumentTypeError(f"expected positive numbers like 32,64, not {text!r}")
    return budgets


def load_models(args: argparse.Namespace):
    """Loads the target, the draft and the tokenizer onto the first device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = AutoModelForCausalLM.from_pretrained(
        args.model_name_or_path,
        attn_implementation="flash_attention_2" if args.flash_attn else "sdpa",
        dtype=torch.bfloat16,
    )
    draft = DFlashDraftModel.from_pretrained(
        args.draft_name_or_path,
        attn_implementation="flash_attention_2",
        dtype=torch.bfloat16,
    )
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    return target.to(device).eval(), draft.to(device).eval(), tokenizer


def load_prompts(args: argparse.Namespace) -> list[str]:
    """Takes the prompts from the dataset or the file asked for, else from this script."""
    if args.dataset:
        path, subset, split, column = DATASETS[args.dataset]
        prompts = list(load_dataset(path, subset, split=split)[column])
    elif args.prompt_file:
        lines = args.prompt_file.read_text(encoding="utf-8").splitlines()
        prompts = [line for line in lines if line.strip()]
    else:
        prompts = list(BUILTIN_PROMPTS)
    prompts = prompts[: args.num_prompts]
    if not prompts:
        raise SystemExit("no prompts to run")
    return prompts


def encode(tokenizer, prompt: str) -> torch.Tensor:
    """Returns the prompt as a chat turn where the tokenizer has a template: (1, T) ids."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    return tokenizer.encode(prompt, return_tensors="pt")


def stop_token_ids(target, tokenizer) -> list[int]:
    """The end-of-text tokens of the generation config, else of the tokenizer."""
    eos = target.generation_config.eos_token_id
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None:
        return []
    return list(eos) if isinstance(eos, (list, tuple)) else [eos]


def build_methods(args: argparse.Namespace, target, draft, stops: list[int]) -> dict[str, Method]:
    """Names what is compared: the baseline, the chain, and one tree per budget."""
    block_size = args.block_size or draft.block_size
    chain = partial(
        dflash_generate,
        draft,
        target,
        mask_token_id=draft.mask_token_id,
        max_new_tokens=args.max_new_tokens,
        stop_token_ids=stops,
        temperature=args.temperature,
    )
    methods: dict[str, Method] = {
        "baseline": partial(chain, block_size=1),
        "dflash": partial(chain, block_size=block_size),
    }

    def run_tree(input_ids: torch.Tensor, budget: int) -> SimpleNamespace:
        if args.flash_attn:
            target.set_attn_implementation("sdpa")
        try:
            return ddtree_generate(
                draft,
                target,
                input_ids,
                mask_token_id=draft.mask_token_id,
                max_new_tokens=args.max_new_tokens,
                block_size=block_size,
                stop_token_ids=stops,
                temperature=args.temperature,
                tree_budget=budget,
            )
        finally:
            if args.flash_attn:
                target.set_attn_implementation("flash_attention_2")

    for budget in args.tree_budget:
        methods[f"ddtree-{budget}"] = partial(run_tree, budget=budget)
    return methods


def summarise(runs: list[SimpleNamespace], baseline: list[SimpleNamespace]) -> dict:
    """Averages over prompts; times are weighted by the tokens that they bought."""
    seconds_per_token = time_per_token(runs)
    lengths = [length for run in runs for length in run.acceptance_lengths]
    stages = runs[0].stage_times
    return {
        "num_prompts": len(runs),
        "num_output_tokens": sum(run.num_output_tokens for run in runs),
        "decode_rounds": sum(run.decode_rounds for run in runs),
        "mean_acceptance_length": fmean(lengths) if lengths else 0.0,
        "time_to_first_token": fmean(run.time_to_first_token for run in runs),
        "time_per_output_token": seconds_per_token,
        "speedup": time_per_token(baseline) / seconds_per_token,
        "stage_times": {name: sum(run.stage_times[name] for run in runs) for name in stages},
        "same_as_baseline": sum(
            torch.equal(run.output_ids, plain.output_ids) for run, plain in zip(runs, baseline, strict=True)
        ),
    }


def time_per_token(runs: list[SimpleNamespace]) -> float:
    """Decoding seconds per output token over all runs."""
    seconds = sum(run.time_per_output_token * run.num_output_tokens for run in runs)
    return seconds / max(sum(run.num_output_tokens for run in runs), 1)


def save(args: argparse.Namespace, report: dict) -> None:
    """Writes the options and the report as JSON."""
    args.save_path.parent.mkdir(parents=True, exist_ok=True)
    content = {"options": vars(args), "results": report}
    args.save_path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    logger.info("saved {}", args.save_path)


if __name__ == "__main__":
    main()
