"""Rounding or corruption? The rule, in numbers that were all measured in the same run. Pure.

Where a model rounds, plain decoding does not even agree with itself: with and without a cache, alone and in a batch.
`noise` is that disagreement; `errors` is the disagreement of the code under test with plain decoding, of the same kind
of quantity on the same texts. Rounding scatters both alike. A fault moves either every value a little (the mean tells)
or a few values a lot (the largest tells), so each is held against its own bound:

    mean(errors)    <= 1.5 * max(mean(noise),    unit / 8)
    largest(errors) <= 3 * max(largest(noise), unit)

`unit` is the spacing of the dtype at the size of the quantity. It is a floor for models whose plain decoding agrees
with itself to the last bit. docs/trust.md has the distributions that the factors were read from.

A value beyond its bound may be a leap: a choice between experts that was nearly even fell otherwise. Values that the
model itself moves as far when its layers round otherwise (nudged.py) are left out, as long as they are few:

    leaps <= 1/16 of the values

For tokens: the emitted token has the highest logit of its own forward, and both logits that are compared may be off by
`e`, so by rounding it lies at most `2 * e` behind the best one of plain decoding, with `e` the largest noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MEAN_FACTOR, LARGEST_FACTOR = 1.5, 3.0
MEAN_FLOOR = 0.125
TOKEN_FACTOR = 2.0
LEAP_SHARE = 1 / 16
# A mean over fewer values says little.
FEWEST = 32


@dataclass(frozen=True)
class Spread:
    """How far two ways of computing the same values are apart: `count` values, their mean and largest distance."""

    count: int = 0
    mean: float = 0.0
    largest: float = 0.0

    def __add__(self, other: Spread) -> Spread:
        count = self.count + other.count
        if not count:
            return self
        mean = (self.mean * self.count + other.mean * other.count) / count
        return Spread(count, mean, max(self.largest, other.largest))


def spread(values: Iterable[float]) -> Spread:
    """Of distances; one that is not a number counts as infinite."""
    found = [math.inf if math.isnan(value) else float(value) for value in values]
    if not found:
        return Spread()
    return Spread(len(found), sum(found) / len(found), max(found))


def without_leaps(errors: Spread, leaps: list[float], largest: float) -> Spread:
    """`errors` without those values, `largest` being the largest that stays; as they were where the leaps are many."""
    count = errors.count - len(leaps)
    if len(leaps) > LEAP_SHARE * errors.count or count <= 0:
        return errors
    return Spread(count, max(0.0, errors.mean * errors.count - sum(leaps)) / count, largest)


def allowed_largest(noise: Spread, unit: float) -> float:
    return LARGEST_FACTOR * max(noise.largest, unit)


def corrupted(errors: Spread, noise: Spread, unit: float) -> str | None:
    """Why `errors` are more than rounding, in words with numbers; None where they are not."""
    allowed = allowed_largest(noise, unit)
    if errors.largest > allowed:
        return f"up to {errors.largest:.2g} off, where rounding explains {allowed:.2g}"
    allowed = MEAN_FACTOR * max(noise.mean, MEAN_FLOOR * unit)
    if errors.count >= FEWEST and errors.mean > allowed:
        return f"{errors.mean:.2g} off on average, where rounding explains {allowed:.2g}"
    return None


def token_kind(behind: float | None, noise: Spread, unit: float) -> str:
    """Of one token that differs from plain decoding: "rounding" or "corruption"; `behind` None is a missing token."""
    rounded = behind is not None and behind <= TOKEN_FACTOR * max(noise.largest, unit)
    return "rounding" if rounded else "corruption"


def spread_of(data: Mapping[str, Any]) -> Spread:
    """A spread read back from a report."""
    return Spread(int(data["count"]), float(data["mean"]), float(data["largest"]))
