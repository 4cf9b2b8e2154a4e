"""Which toggle is the cause: paired gains against their own spread, and one elimination after another. Pure.

A toggle is measured on the same prompts as what it is compared with, so each prompt gives one difference of accepted
lengths. A gain counts where a one-sided t-test on these differences stays below `ALARM`, shared out among all toggles
that were tried (Bonferroni), and where it is at least `LEAST` of what it raises. What mends the text comes before any
gain: accepted tokens of wrong text are worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

ALARM = 0.05
LEAST = 0.05
# What raises the accepted length by less than this share contributes, and is not called the cause.
CAUSE = 0.10
# Of the best gain: toggles within this share of it are told apart by which repair is the narrowest.
ALIKE = 0.9
FEWEST = 4

Status = Literal["cause", "contributes", "not the cause", "not applicable", "unmeasured"]
STATUSES: tuple[Status, ...] = ("cause", "contributes", "unmeasured", "not the cause", "not applicable")


@dataclass(frozen=True)
class Measured:
    """One toggle in one mode: accepted lengths by prompt without it (`before`) and with it (`after`), paired.

    `wrong_before` and `wrong_after` count prompts whose text is not that of plain decoding. `screened` toggles were
    stopped after a few prompts, none of which gained. `rank` orders suspects from the narrowest repair to the widest.
    """

    suspect: str
    toggle: str
    mode: str
    rank: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    wrong_before: int = 0
    wrong_after: int = 0
    screened: bool = False

    @property
    def gains(self) -> tuple[float, ...]:
        return tuple(b - a for a, b in zip(self.before, self.after, strict=True))

    @property
    def gain(self) -> float:
        return fmean(self.gains)

    @property
    def share(self) -> float:
        return self.gain / fmean(self.before)

    @property
    def chance(self) -> float:
        """How likely a gain like this is where the toggle changes nothing on average."""
        return chance_of(self.gains)

    @property
    def mends_text(self) -> bool:
        return self.wrong_before > 0 and self.wrong_after == 0


def chance_of(gains: Sequence[float]) -> float:
    """One-sided p of a paired t-test; 1.0 for fewer than `FEWEST` pairs, which tell nothing."""
    if len(gains) < FEWEST:
        return 1.0
    spread, mean = stdev(gains), fmean(gains)
    if spread == 0.0:
        return 0.0 if mean > 0 else 1.0
    return student_tail(mean / (spread / math.sqrt(len(gains))), len(gains) - 1)


def student_tail(t: float, freedom: int, steps: int = 400) -> float:
    """P(T > t): with t = sqrt(n) tan(a) the density of a is proportional to cos(a)^(n-1); Simpson's rule on both."""

    def integral(low: float) -> float:
        width = (math.pi / 2 - low) / steps
        values = [max(0.0, math.cos(low + i * width)) ** (freedom - 1) for i in range(steps + 1)]
        return width / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))

    return min(1.0, integral(math.atan(t / math.sqrt(freedom))) / (2 * integral(0.0)))


def counts(measured: Measured, comparisons: int) -> bool:
    """Whether the gain is more than noise, `comparisons` being the number of toggles that were tried beside it."""
    return not measured.screened and measured.share >= LEAST and measured.chance <= ALARM / max(1, comparisons)


def chosen(measured: Sequence[Measured]) -> Measured | None:
    """The repair to keep: one that mends the text, the narrowest of these; else the largest gain that counts."""
    mending = [entry for entry in measured if entry.mends_text]
    if mending:
        return min(mending, key=lambda entry: (entry.rank, -entry.gain))
    gaining = [entry for entry in measured if counts(entry, len(measured))]
    if not gaining:
        return None
    best = max(entry.share for entry in gaining)
    alike = [entry for entry in gaining if entry.share >= ALIKE * best]
    return min(alike, key=lambda entry: (entry.rank, -entry.share))


def weight_of(choice: Measured) -> Status:
    """What a chosen repair is called."""
    return "cause" if choice.mends_text or choice.share >= CAUSE else "contributes"


def best_of(measured: Sequence[Measured]) -> Measured | None:
    """The measurement to show for a suspect: the one with the largest share; of equals one that was not screened."""
    return max(measured, key=lambda entry: (entry.share, not entry.screened), default=None)


def as_bad_as_random(accepted: Sequence[float], floor: Sequence[float]) -> bool:
    """Whether accepted lengths are not told from those of an untrained draft on the same prompts."""
    gains = [a - b for a, b in zip(accepted, floor, strict=True)]
    return fmean(gains) < LEAST * fmean(floor) or chance_of(gains) > ALARM
