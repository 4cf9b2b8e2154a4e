"""Faults planted where a model rounds: would the comparisons with noise see them on these very weights?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from compatfix.validate.bench import Bench, Mode
from compatfix.validate.bf16 import (
    Noise,
    PlainText,
    Seen,
    exact_draft,
    kind_of,
    measured_noise,
    noisy_difference,
    plain_text,
)
from compatfix.validate.faults import IDLE, MAY_BE_IDLE, PLANTED, idle, not_applicable, understood
from compatfix.validate.oracle import Profile

PROMPTS = 2
TOKENS = 24
# Those that are planted in a model's own forward; what becomes of the text afterwards does not depend on the weights.
ON_WEIGHTS = (
    "state-not-rolled-back",
    "sibling-leaked",
    "compaction-off-by-one",
    "stale-keys",
    "position-off-by-one",
    "window-mask-missing",
    "hidden-state-offset",
    "layer-id-off",
    "rotated-basis",
    "draft-not-cropped",
    "draft-windows-ignored",
)


def run_noisy_faults(
    bench: Bench,
    mode: Mode,
    prompts: Sequence[list[int]],
    profile: Profile | None,
    report: Callable[[str, int, int], None],
    *,
    names: Sequence[str] = ON_WEIGHTS,
    tokens: int = TOKENS,
) -> list[dict[str, Any]]:
    """Plants each fault in turn on the first prompts; the entries are those of `faults.run_faults`."""
    texts = [plain_text(bench, prompt, tokens) for prompt in prompts[:PROMPTS]]
    noise, exact = measured_noise(bench, texts), exact_draft(bench)
    found = []
    for number, name in enumerate(names):
        report(f"planted fault on these weights: {name}", number, len(names))
        reason = not_applicable(bench, mode, name)
        entry: dict[str, Any] = {
            "name": name,
            "what": PLANTED[name][1],
            "mode": mode.name,
            "applicable": reason is None,
        }
        if reason is not None:
            found.append({**entry, "caught": False, "reason": reason})
            continue
        by = _seen(bench, mode, name, texts, noise, exact, profile)
        if (
            "by" not in by
            and name in MAY_BE_IDLE
            and idle(bench, mode, name, [(t.prompt, t.tokens, i) for i, t in enumerate(texts)], profile)
        ):
            found.append({**entry, "applicable": False, "caught": False, "reason": IDLE})
        else:
            found.append({**entry, "caught": "by" in by, "prompts": len(texts), **by})
    return found


def _seen(
    bench: Bench,
    mode: Mode,
    name: str,
    texts: Sequence[PlainText],
    noise: Noise,
    exact: nn.Module | None,
    profile: Profile | None,
) -> dict[str, Any]:
    """Which comparison calls the fault corruption: tokens, logits, features or the draft; else what they measured."""
    make = PLANTED[name][0]
    assert make is not None
    seen = Seen()
    for index, text in enumerate(texts):
        run = bench.run(
            mode,
            text.prompt,
            len(text.tokens),
            reference=text.tokens,
            profile=profile,
            salt=index,
            keep_logits=True,
            tamper=make(),
        )
        if not understood(run):
            continue
        if run.error is not None:
            return {"by": "exception", "detail": f"{run.error['type']}: {run.error['message']}"}
        difference = noisy_difference(bench, run, text, len(text.tokens))
        if difference and kind_of(bench, difference, noise) == "corruption":
            return {"by": "tokens", "index": difference["index"], "margin": difference["margin"]}
        seen.add(bench, run, exact, nodes=True, drafts=True)
    checks = noise.judged(bench, seen)
    for check, result in checks.items():
        if result["why"]:
            return {"by": check, "detail": result["why"]}
    return {"checks": checks}
