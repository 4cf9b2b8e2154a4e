"""Three independent ways to decode plainly; they must agree before anything is compared with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compatfix.validate.bench import PLAIN, Bench
from compatfix.validate.claims import field_differences
from compatfix.validate.devices import input_device
from compatfix.validate.locate_error import locate_error
from compatfix.validate.plain import margins, uncached

# Prompts whose text passes through a tie closer than this are replaced: two right ways may part there.
NEAR_TIE = 1e-3
REDRAWS = 6
REDRAW_STEP = 1000


@dataclass(frozen=True)
class Reference:
    """`tokens` is the library's text, longer than what is asked of the tree so that an oracle sees past the limit.

    `plain` is the text of the tree's own block-size-1 path, None where the tree has none or it raised (`error`).
    `disagreements` name two ways and the index of the first token in which they differ; `fields` of that path's
    result say something else than was seen.
    """

    index: int
    prompt: list[int]
    tokens: list[int]
    plain: list[int] | None
    error: dict[str, Any] | None
    disagreements: list[dict[str, Any]]
    smallest_margin: float
    noise: float
    redrawn: int
    seconds: float = 0.0
    prompt_kept: bool = True
    fields: Sequence[dict[str, Any]] = ()


def make_reference(bench: Bench, index: int, tokens: int, *, with_tree: bool = True) -> Reference:
    """The references for prompt `index`; a prompt whose text has a near tie is drawn again."""
    for redrawn in range(REDRAWS):
        prompt = bench.prompt(index + REDRAW_STEP * redrawn)
        text, noise, margin, uncached_at = _library(bench, prompt, tokens + bench.block)
        if margin >= NEAR_TIE or redrawn == REDRAWS - 1:
            break
    disagreements = []
    if uncached_at is not None:
        disagreements.append({"prompt": index, "ways": ["generate", "uncached forward"], "index": uncached_at})
    plain, error, seconds, kept = None, None, 0.0, True
    fields: list[dict[str, Any]] = []
    if with_tree:
        began = time.perf_counter()
        run = bench.run(PLAIN, prompt, tokens, profile=None)
        seconds = time.perf_counter() - began
        error = run.error and {**run.error, "at": locate_error(bench, run, prompt, text)}
        plain, kept = (run.tokens, run.prompt_kept) if error is None else (None, True)
        fields = [] if error else field_differences(run, prompt)
        if plain is not None and plain != text[:tokens]:
            at = next((i for i, pair in enumerate(zip(plain, text, strict=False)) if pair[0] != pair[1]), len(plain))
            ways = ["block size 1 of the tree", "generate"]
            disagreements.append({"prompt": index, "ways": ways, "index": at})
    return Reference(index, prompt, text, plain, error, disagreements, margin, noise, redrawn, seconds, kept, fields)


def _library(bench: Bench, prompt: list[int], count: int) -> tuple[list[int], float, float, int | None]:
    """Text of generate(); noise and smallest margin against one uncached forward; where the two differ, if they do."""
    text, logits = generate(bench.target, prompt, count)
    plain = uncached(bench.target, [*prompt, *text]).logits[len(prompt) - 1 : -1]
    noise = float((plain - logits).abs().max())
    wrong = (plain.argmax(-1) != torch.tensor(text, device=plain.device)).nonzero()
    at = int(wrong[0]) if len(wrong) else None
    return text, noise, float(margins(plain).min()), at


def generate(target: Any, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """The library's own greedy decoding: tokens, and their logits (count, V)."""
    from transformers import GenerationConfig

    device = input_device(target)
    input_ids = torch.tensor([prompt], device=device)
    # Neither the checkpoint's stop tokens nor its penalties: plain argmax, to the end.
    config = GenerationConfig(do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0, use_cache=True)
    with torch.inference_mode():
        output = target.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            generation_config=config,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits).float()
