"""Where a model rounds: is what differs from plain decoding rounding or corruption?

In bf16 not even plain decoding agrees with itself: another kernel or batch shape rounds otherwise. That noise is
measured here, in the same run, on the same texts, for everything that is compared: logits, the context handed to the
draft, the draft's own output. The rule is in rounding.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from compatfix.validate.bench import PLAIN, Bench, Mode, Run
from compatfix.validate.compare import NodeError, draft_errors, feature_errors, node_errors, relative
from compatfix.validate.losslessness import warm_up
from compatfix.validate.nudged import leaps, may_choose
from compatfix.validate.oracle import ORACLE, Profile
from compatfix.validate.plain import PlainDecoder, margins, uncached, uncached_rows
from compatfix.validate.rounding import (
    LEAP_SHARE,
    TOKEN_FACTOR,
    Spread,
    allowed_largest,
    corrupted,
    spread,
    token_kind,
    without_leaps,
)

FIRST_PROMPT = 900
# Node logits cost a plain forward per path: these rounds of the first prompts, and so many paths of each.
NODE_PROMPTS = 4
NODE_ROUNDS = (0, 1, 3, 6, 10)
NODE_PATHS = 6
DRAFT_PROMPTS = 4
# Nodes that are kept for a second look, and tokens by which a text is lengthened.
FAR, LONGER = 16, 16
CHECKS = ("logits", "features", "draft")

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PlainText:
    """A text of plain decoding with the margin of each token; `flips` are margins where another way of it disagrees.

    `noise` is how far other ways of plain decoding are off in its logits, `feature_noise` in what the draft reads.
    """

    prompt: list[int]
    tokens: list[int]
    margins: list[float]
    noise: Spread
    feature_noise: Spread
    largest_logit: float
    flips: list[float]


@dataclass
class Seen:
    """What was compared of one mode beside its tokens: distances and their noise, and shapes that are wrong."""

    errors: dict[str, Spread] = field(default_factory=lambda: dict.fromkeys(CHECKS, Spread()))
    draft_noise: Spread = field(default_factory=Spread)
    # The nodes that are farthest off, the farthest first.
    far: list[NodeError] = field(default_factory=list)
    wrong: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, bench: Bench, run: Run, exact: nn.Module | None, *, nodes: bool, drafts: bool) -> None:
        """Enters one generation. `exact` is the draft in a larger dtype, None where there is no room."""
        if nodes:
            found = node_errors(bench, run, NODE_ROUNDS, NODE_PATHS)
            self.errors["logits"] += spread(node.distance for node in found)
            self.far = sorted([*self.far, *found], key=lambda node: -node.distance)[:FAR]
        features = feature_errors(bench, run)
        if isinstance(features, dict):
            self.wrong.setdefault("features", features)
        elif features is not None:
            self.errors["features"] += spread(features)
        drafted = draft_errors(bench, run, exact) if drafts and exact is not None else None
        if isinstance(drafted, dict):
            self.wrong.setdefault("draft", drafted)
        elif drafted is not None:
            self.errors["draft"] += spread(drafted[0])
            self.draft_noise += spread(drafted[1])


def run_bf16(bench: Bench, modes: Sequence[Mode], prompts: int, tokens: int, report: Report) -> dict[str, Any]:
    """Every mode against plain decoding on a model in bf16, with the oracle draft."""
    drawn = [bench.prompt(FIRST_PROMPT + index) for index in range(prompts)]
    return compare_with_noise(bench, modes, drawn, tokens, ORACLE, report, "bf16")


def compare_with_noise(
    bench: Bench,
    modes: Sequence[Mode],
    prompts: Sequence[list[int]],
    tokens: int,
    profile: Profile | None,
    report: Report,
    name: str,
) -> dict[str, Any]:
    """Every mode against plain decoding; `differences` hold the margin of each first differing token, `checks` what
    was compared beside tokens, with its noise.

    `profile` None runs the draft as it is.
    """
    warm_up(bench, modes)
    everything = [PLAIN, *modes] if bench.tree.chain else list(modes)
    rows = [_new_row(mode) for mode in everything]
    seen = [Seen() for _ in everything]
    exact = exact_draft(bench)
    texts: list[PlainText] = []
    for index, prompt in enumerate(prompts):
        report(name, index, len(prompts))
        texts.append(plain_text(bench, prompt, tokens))
        for mode, row, checks in zip(everything, rows, seen, strict=True):
            if row["error"] is not None:
                continue
            run = _enter(bench, mode, row, texts[-1], index, tokens, None if mode.kind == "plain" else profile)
            if run.error is None and mode.kind != "plain":
                checks.add(bench, run, exact, nodes=index < NODE_PROMPTS, drafts=index < DRAFT_PROMPTS)
    noise = measured_noise(bench, texts)
    for row, checks in zip(rows, seen, strict=True):
        for difference in row["differences"]:
            # How far the emitted token lies behind: a close call between two tokens, or nothing of the kind.
            difference["kind"] = kind_of(bench, difference, noise)
            del difference["text"]
        row["checks"] = noise.judged(bench, checks)
    flips = [margin for text in texts for margin in text.flips]
    return {
        "dtype": str(next(bench.target.parameters()).dtype).removeprefix("torch."),
        "prompts": len(prompts),
        "tokens": tokens,
        "noise": noise.logits.largest,
        "noise_mean": noise.logits.mean,
        "unit": noise.unit,
        "plain_flips": len(flips),
        "plain_flip_margin": max(flips, default=0.0),
        "modes": rows,
    }


@dataclass(frozen=True)
class Noise:
    """What plain decoding disagrees with itself by; `unit` is the spacing of the dtype at the largest logit, `eps` that
    of relative quantities."""

    logits: Spread
    features: Spread
    unit: float
    eps: float

    def judged(self, bench: Bench, seen: Seen) -> dict[str, Any]:
        """By check: what was measured, its noise, how many leaps were left out, why it is corruption or None."""
        noises = {"logits": self.logits, "features": self.features, "draft": seen.draft_noise}
        units = {"logits": self.unit, "features": self.eps, "draft": self.eps}
        found = {}
        for name in CHECKS:
            errors, noise, unit = seen.errors[name], noises[name], units[name]
            wrong = seen.wrong.get(name)
            why = _misshapen(wrong) if wrong is not None else corrupted(errors, noise, unit)
            leaps = 0
            if why is not None and name == "logits" and math.isfinite(errors.largest):
                errors, leaps = self._without_leaps(bench, seen)
                why = corrupted(errors, noise, unit)
            found[name] = {**asdict(errors), "noise": asdict(noise), "unit": unit, "leaps": leaps, "why": why}
        return found

    def _without_leaps(self, bench: Bench, seen: Seen) -> tuple[Spread, int]:
        """The distances of nodes without those that are beyond the bound and that rounding alone moves as far."""
        errors, allowed = seen.errors["logits"], allowed_largest(self.logits, self.unit)
        beyond = [node for node in seen.far if node.distance > allowed]
        if not beyond or len(beyond) > min(FAR - 1, LEAP_SHARE * errors.count):
            return errors, 0
        with bench.watch.quiet():
            explained = [node for node in beyond if leaps(bench.target, node.text, node.logits, node.distance, allowed)]
        rest = max(node.distance for node in seen.far if node not in explained)
        return without_leaps(errors, [node.distance for node in explained], rest), len(explained)


def kind_of(bench: Bench, difference: Mapping[str, Any], noise: Noise) -> str:
    """Of one token that differs from plain decoding: "rounding", by the noise or by a leap, or "corruption"."""
    kind = token_kind(difference["behind"], noise.logits, noise.unit)
    if kind == "rounding" or difference["got"] is None:
        return kind
    behind = TOKEN_FACTOR * max(noise.logits.largest, noise.unit)
    with bench.watch.quiet():
        return "rounding" if may_choose(bench.target, difference["text"], difference["got"], behind) else kind


def _misshapen(wrong: Mapping[str, Any]) -> str:
    """What comparisons say of sizes that do not match, in words."""
    numbers = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in wrong.items() if name != "reason")
    return f"another {wrong['reason']} ({numbers})"


def measured_noise(bench: Bench, texts: Sequence[PlainText]) -> Noise:
    eps = float(torch.finfo(next(bench.target.parameters()).dtype).eps)
    logits = sum((text.noise for text in texts), Spread())
    features = sum((text.feature_noise for text in texts), Spread())
    return Noise(logits, features, eps * max((text.largest_logit for text in texts), default=1.0), eps)


def exact_draft(bench: Bench) -> nn.Module | None:
    """The draft in a larger dtype, the yardstick of its rounding; None where it does not fit beside the others."""
    larger = torch.float64 if next(bench.draft.parameters()).dtype == torch.float32 else torch.float32
    try:
        return copy.deepcopy(bench.draft).to(larger)
    except (RuntimeError, TypeError, MemoryError):
        return None


def _new_row(mode: Mode) -> dict[str, Any]:
    numbers = {"run": 0, "same": 0, "tokens": 0, "forwards": 0, "lengths": []}
    return {"mode": mode.name, **numbers, "differences": [], "error": None}


def _enter(
    bench: Bench, mode: Mode, row: dict[str, Any], text: PlainText, index: int, tokens: int, profile: Profile | None
) -> Run:
    run = bench.run(
        mode,
        text.prompt,
        tokens,
        reference=text.tokens,
        profile=profile,
        salt=FIRST_PROMPT + index,
        keep_logits=index < NODE_PROMPTS,
    )
    if run.error is not None:
        row["error"] = {**run.error, "prompt": index}
        return run
    row["run"] += 1
    row["tokens"] += len(run.tokens)
    row["forwards"] += run.watch.forwards
    row["lengths"] += run.lengths
    difference = noisy_difference(bench, run, text, tokens)
    row["same"] += difference is None
    if difference is not None:
        row["differences"].append({"prompt": index, **difference})
    return run


def noisy_difference(bench: Bench, run: Run, text: PlainText, tokens: int) -> dict[str, Any] | None:
    """The first token that differs from plain decoding, with its margin and how far what was emitted lies behind."""
    expected = text.tokens[:tokens]
    if run.tokens == expected:
        return None
    pairs = zip(run.tokens, expected, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(run.tokens), len(expected)))
    got = run.tokens[at] if at < len(run.tokens) else None
    return {
        "index": at,
        "got": got,
        "expected": expected[at] if at < len(expected) else None,
        "margin": text.margins[at] if at < len(text.margins) else None,
        "behind": _behind(bench, [*text.prompt, *expected[:at]], got),
        "text": [*text.prompt, *expected[:at]],
    }


def _behind(bench: Bench, prefix: Sequence[int], token: int | None) -> float | None:
    if token is None:
        return None
    with bench.watch.quiet():
        logits = uncached(bench.target, prefix).logits[-1]
    return float(logits.max() - logits[token])


def plain_text(bench: Bench, prompt: list[int], tokens: int) -> PlainText:
    """One token at a time with a cache; then the same text without a cache, alone and in a batch."""
    decoder = PlainDecoder(bench.target, prompt, hidden=bool(bench.layer_ids))
    rows = [decoder.logits.float()]
    states = [decoder.states]
    text = [int(rows[0].argmax())]
    while len(text) < tokens:
        rows.append(decoder.step(text[-1]).float())
        states.append(decoder.states)
        text.append(int(rows[-1].argmax()))
    cached = torch.stack(rows)
    first = len(prompt) - 1
    whole = [*prompt, *text[:-1]]
    reads = bool(bench.layer_ids)
    alone = uncached(bench.target, whole, hidden=reads)
    batched = uncached_rows(bench.target, [whole, whole[::-1], whole[1:]], hidden=reads)[0]
    # A text that goes on runs the kernels of longer ones, as a verification does.
    longer = uncached(bench.target, [*whole, *whole[:LONGER]], hidden=reads)
    ways = (alone, batched, longer)
    last = first + len(text)
    others = [other.logits[first:last] for other in ways]
    noise = _worst(spread((cached - other).abs().amax(-1).tolist()) for other in others)
    features = Spread()
    if reads:
        own = torch.cat([_read(bench, entry) for entry in states])
        read = [_read(bench, other.hidden)[: len(own)] for other in ways]
        features = _worst(spread(relative(own, other, len(bench.layer_ids))) for other in read)
    sure = margins(cached)
    flips = [float(sure[i]) for i in range(len(text)) if int(others[0][i].argmax()) != text[i]]
    return PlainText(prompt, text, sure.tolist(), noise, features, float(cached.abs().max()), flips)


def _worst(ways: Iterable[Spread]) -> Spread:
    """Of several ways of plain decoding the one that is farthest off on average, with the largest distance of any."""
    found = list(ways)
    worst = max(found, key=lambda one: one.mean)
    return Spread(worst.count, worst.mean, max(one.largest for one in found))


def _read(bench: Bench, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
    """What the draft reads of a forward's hidden states: (T, layers * H)."""
    return torch.cat([hidden[layer + 1] for layer in bench.layer_ids], dim=-1)
