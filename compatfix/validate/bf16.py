"""The bf16 leg: where tokens differ from plain bf16 decoding, is it rounding or corruption?

In bf16 not even plain decoding agrees with itself: another kernel or batch shape rounds otherwise. That noise is
measured here, in the same run, on the same texts. A token that differs by less than the noise is rounding, one that
differs by more is corruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compatfix.validate.bench import PLAIN, Bench, Mode
from compatfix.validate.losslessness import warm_up
from compatfix.validate.oracle import ORACLE, Profile
from compatfix.validate.plain import PlainDecoder, margins, uncached, uncached_rows

FIRST_PROMPT = 900


@dataclass(frozen=True)
class PlainText:
    """A text of plain decoding with the margin of each token; `flips` are margins where another way of it disagrees."""

    prompt: list[int]
    tokens: list[int]
    margins: list[float]
    noise: float
    flips: list[float]


def run_bf16(
    bench: Bench, modes: Sequence[Mode], prompts: int, tokens: int, report: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Every mode against plain decoding on a model in bf16, with the oracle draft."""
    drawn = [bench.prompt(FIRST_PROMPT + index) for index in range(prompts)]
    return compare_with_margins(bench, modes, drawn, tokens, ORACLE, report, "bf16")


def compare_with_margins(
    bench: Bench,
    modes: Sequence[Mode],
    prompts: Sequence[list[int]],
    tokens: int,
    profile: Profile | None,
    report: Callable[[str, int, int], None],
    name: str,
) -> dict[str, Any]:
    """Every mode against plain decoding; `differences` hold the margin of each first differing token.

    `profile` None runs the draft as it is. Modes are interleaved prompt by prompt, so that times can be compared.
    """
    warm_up(bench, modes)
    everything = [PLAIN, *modes] if bench.tree.chain else list(modes)
    rows = [_new_row(mode) for mode in everything]
    texts: list[PlainText] = []
    for index, prompt in enumerate(prompts):
        report(name, index, len(prompts))
        texts.append(_plain_text(bench, prompt, tokens))
        for mode, row in zip(everything, rows, strict=True):
            if row["error"] is None:
                _enter(bench, mode, row, texts[-1], index, tokens, None if mode.kind == "plain" else profile)
    noise = max(text.noise for text in texts)
    for row in rows:
        for difference in row["differences"]:
            # How far the emitted token lies behind: a close call between two tokens, or nothing of the kind.
            behind = difference["behind"]
            difference["kind"] = "rounding" if behind is not None and behind <= noise else "corruption"
    flips = [margin for text in texts for margin in text.flips]
    return {
        "dtype": str(next(bench.target.parameters()).dtype).removeprefix("torch."),
        "prompts": len(prompts),
        "tokens": tokens,
        "noise": noise,
        "plain_flips": len(flips),
        "plain_flip_margin": max(flips, default=0.0),
        "modes": rows,
    }


def _new_row(mode: Mode) -> dict[str, Any]:
    numbers = {"run": 0, "same": 0, "tokens": 0, "forwards": 0, "lengths": [], "seconds_per_token": []}
    numbers["stage_seconds"] = {}
    return {"mode": mode.name, **numbers, "differences": [], "error": None}


def _enter(
    bench: Bench, mode: Mode, row: dict[str, Any], text: PlainText, index: int, tokens: int, profile: Profile | None
) -> None:
    began = time.perf_counter()
    run = bench.run(mode, text.prompt, tokens, reference=text.tokens, profile=profile, salt=FIRST_PROMPT + index)
    seconds = time.perf_counter() - began
    if run.error is not None:
        row["error"] = {**run.error, "prompt": index}
        return
    row["run"] += 1
    row["tokens"] += len(run.tokens)
    row["forwards"] += run.watch.forwards
    row["lengths"] += run.lengths
    for stage, spent in run.stage_times.items():
        row["stage_seconds"][stage] = row["stage_seconds"].get(stage, 0.0) + spent
    row["seconds_per_token"].append(seconds / max(1, len(run.tokens)))
    expected = text.tokens[:tokens]
    if run.tokens == expected:
        row["same"] += 1
        return
    pairs = zip(run.tokens, expected, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(run.tokens), len(expected)))
    got = run.tokens[at] if at < len(run.tokens) else None
    row["differences"].append(
        {
            "prompt": index,
            "index": at,
            "got": got,
            "expected": expected[at] if at < len(expected) else None,
            "margin": text.margins[at] if at < len(text.margins) else None,
            "behind": _behind(bench, [*text.prompt, *expected[:at]], got),
        }
    )


def _behind(bench: Bench, prefix: Sequence[int], token: int | None) -> float | None:
    if token is None:
        return None
    with bench.watch.quiet():
        logits = uncached(bench.target, prefix).logits[-1]
    return float(logits.max() - logits[token])


def _plain_text(bench: Bench, prompt: list[int], tokens: int) -> PlainText:
    """One token at a time with a cache; then the same text without a cache, alone and in a batch."""
    decoder = PlainDecoder(bench.target, prompt)
    rows = [decoder.logits.float()]
    text = [int(rows[0].argmax())]
    while len(text) < tokens:
        rows.append(decoder.step(text[-1]).float())
        text.append(int(rows[-1].argmax()))
    cached = torch.stack(rows)
    first = len(prompt) - 1
    whole = [*prompt, *text[:-1]]
    alone = uncached(bench.target, whole).logits[first:]
    batched = uncached_rows(bench.target, [whole, whole[::-1], whole[1:]])[0].logits[first:]
    noise = max(float((cached - other).abs().max()) for other in (alone, batched))
    sure = margins(cached)
    flips = [float(sure[i]) for i in range(len(text)) if int(alone[i].argmax()) != text[i]]
    return PlainText(prompt, text, sure.tolist(), noise, flips)
