"""Which toggle is the cause: paired gains against their own spread, and one elimination after another. Pure.

A toggle is measured on the same prompts as what it is compared with, so each prompt gives one ratio of accepted
lengths. Were a toggle worth nothing, each ratio might as well have gone the other way: all ways to turn them (the same
prompts for all toggles) tell how large the largest of so many gains is by luck, whatever the spread and however many
toggles were tried (the max statistic of Westfall and Young). A gain counts where luck reaches it in at most `ALARM` of
the ways, and where it is at least `LEAST`. What mends the text comes before any gain: accepted tokens of wrong text are
worth nothing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

# Half of one in twenty, since only toggles whose gain is above nothing are compared.
ALARM = 0.025
LEAST = 0.05
# What raises the accepted length by less than this share contributes, and is not called the cause.
CAUSE = 0.10
# Of the best gain: toggles within this share of it are told apart by which repair is the narrowest.
ALIKE = 0.9
# With fewer prompts not even a gain on each of them is out of luck's reach.
FEWEST = 6
# Above this many prompts the ways are drawn and not counted out.
COUNTED_OUT = 12

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
    def key(self) -> tuple[str, str, str]:
        return self.suspect, self.toggle, self.mode

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
    def ratios(self) -> tuple[float, ...]:
        """Logarithms, so that a prompt on which much is accepted does not outweigh all others."""
        return tuple(math.log(b / a) for a, b in zip(self.before, self.after, strict=True))

    @property
    def mends_text(self) -> bool:
        return self.wrong_before > 0 and self.wrong_after == 0


def chances(rows: Sequence[Sequence[float]]) -> list[float]:
    """For each row of paired differences: the share of ways to turn signs in which some row comes out as large.

    Rows have one entry per prompt and are turned together. A row is as large as its sum, in units of its own length.
    """
    lengths = [math.sqrt(sum(value * value for value in row)) for row in rows]
    sizes = [sum(row) / length if length else 0.0 for row, length in zip(rows, lengths, strict=True)]
    live = [(row, length) for row, length in zip(rows, lengths, strict=True) if length]
    if not live:
        return [1.0] * len(rows)
    largest = [
        max(sum(sign * value for sign, value in zip(signs, row, strict=True)) / length for row, length in live)
        for signs in _ways(len(rows[0]))
    ]
    return [sum(found >= size - 1e-9 for found in largest) / len(largest) for size in sizes]


def _ways(count: int) -> list[tuple[int, ...]]:
    if count <= COUNTED_OUT:
        return list(itertools.product((1, -1), repeat=count))
    draw = random.Random(count)
    # The way that was seen is one of them, so that a chance is never zero.
    return [(1,) * count, *(tuple(draw.choice((1, -1)) for _ in range(count)) for _ in range(2**COUNTED_OUT - 1))]


def gaining(measured: Sequence[Measured]) -> dict[tuple[str, str, str], float]:
    """The chance of every toggle that gained at all on the whole set of prompts, by `Measured.key`."""
    rows = [entry for entry in measured if not entry.screened and sum(entry.ratios) > 0]
    if not rows or len(rows[0].ratios) < FEWEST:
        return {}
    return dict(zip((entry.key for entry in rows), chances([entry.ratios for entry in rows]), strict=True))


def counting(measured: Sequence[Measured]) -> list[Measured]:
    """The toggles of one level whose gain is more than noise."""
    known = gaining(measured)
    return [entry for entry in measured if known.get(entry.key, 1.0) <= ALARM and entry.share >= LEAST]


def chosen(measured: Sequence[Measured]) -> Measured | None:
    """The repair to keep: one that mends the text, the narrowest of these; else the largest gain that counts."""
    mending = [entry for entry in measured if entry.mends_text]
    if mending:
        return min(mending, key=lambda entry: (entry.rank, -entry.gain))
    found = counting(measured)
    if not found:
        return None
    best = max(entry.share for entry in found)
    alike = [entry for entry in found if entry.share >= ALIKE * best]
    return min(alike, key=lambda entry: (entry.rank, -entry.share))


def weight_of(choice: Measured) -> Status:
    """What a chosen repair is called."""
    return "cause" if choice.mends_text or choice.share >= CAUSE else "contributes"


def best_of(measured: Sequence[Measured]) -> Measured | None:
    """The measurement to show for a suspect: the one with the largest share; of equals one that was not screened."""
    return max(measured, key=lambda entry: (entry.share, not entry.screened), default=None)


def as_bad_as_random(accepted: Sequence[float], floor: Sequence[float]) -> bool:
    """Whether accepted lengths are not told from those of an untrained draft on the same prompts."""
    ratios = [math.log(a / b) for a, b in zip(accepted, floor, strict=True)]
    return fmean(accepted) < (1 + LEAST) * fmean(floor) or chances([ratios])[0] > 2 * ALARM
