"""Ratios of times with what they are worth: medians, quartiles, paired intervals, the noise floor. Pure, torch-free.

Prompts are the sample: repetitions of one prompt are not independent of one another, so that they are first joined to
one number per prompt, and prompts alone are resampled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import Literal

RESAMPLES = 4000
# Below it an interval rests on the shape of the distribution more than on the data.
FEWEST_PROMPTS = 8
# The difference that a benchmark should at least be able to tell.
WORTH_TELLING = 0.05

Difference = Literal["faster", "slower", "noise"]
# Seconds of one mode: the prompt's index to one number per repetition, None where it did not run.
Times = Mapping[int, Sequence[float | None]]


@dataclass(frozen=True)
class Ratio:
    """How many times faster one mode is than another. `low` and `high` are None where there is no spread to tell."""

    value: float
    low: float | None
    high: float | None
    prompts: int


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile, interpolated between order statistics. `values` is not empty."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return at(0.25), at(0.5), at(0.75)


def ratio(slow: Times, fast: Times, level: float, seed: int) -> Ratio | None:
    """How many times faster `fast` is than `slow`; None where no prompt ran in both."""
    logs = paired_logs(slow, fast)
    if not logs:
        return None
    centre = fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(centre), None, None, len(logs))
    low, high = interval_of_mean(logs, level, seed)
    return Ratio(math.exp(centre), math.exp(low), math.exp(high), len(logs))


def paired_logs(slow: Times, fast: Times) -> list[float]:
    """One number per prompt: the median, over the repetitions, of the log ratio of runs that stood side by side."""
    logs = []
    for prompt in sorted(set(slow) & set(fast)):
        # A repetition that was broken off lacks one of the two.
        pairs = zip(slow[prompt], fast[prompt], strict=False)
        found = [math.log(one / other) for one, other in pairs if one and other]
        if found:
            logs.append(median(found))
    return logs


def interval_of_mean(values: Sequence[float], level: float, seed: int) -> tuple[float, float]:
    """A bootstrap interval of the mean; `values` has two entries or more.

    The percentile interval is too narrow for few values. It is expanded about the mean as Hesterberg (2015, arXiv
    1411.5279, section 5) has it: by t over normal quantiles and by the square root of n / (n - 1).
    """
    count, centre = len(values), fmean(values)
    draw = random.Random(seed)
    means = sorted(fmean(draw.choices(values, k=count)) for _ in range(RESAMPLES))
    tail = (1 - level) / 2
    low, high = means[int(tail * (RESAMPLES - 1))], means[math.ceil((1 - tail) * (RESAMPLES - 1))]
    wider = t_quantile(1 - tail, count - 1) / NormalDist().inv_cdf(1 - tail) * math.sqrt(count / (count - 1))
    return centre - wider * max(0.0, centre - low), centre + wider * max(0.0, high - centre)


def t_quantile(share: float, freedom: int) -> float:
    """The quantile of Student's t: exact for 1 and 2 degrees of freedom, else a series in 1 / freedom.

    The series is that of Cornish and Fisher, as in Abramowitz and Stegun 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(freedom) ** (power + 1) for power, term in enumerate(terms))


def floor_of(again: Ratio | None) -> float | None:
    """The noise floor as a log ratio: the farther end of the interval that plain decoding has against itself."""
    if again is None or again.low is None or again.high is None:
        return None
    return max(abs(math.log(again.low)), abs(math.log(again.high)))


def difference(found: Ratio | None, floor: float | None) -> Difference:
    """What a ratio says: noise where its interval covers 1, or where it is no farther from 1 than the floor."""
    if found is None or found.low is None or found.high is None or floor is None:
        return "noise"
    if found.low <= 1 <= found.high or abs(math.log(found.value)) <= floor:
        return "noise"
    return "faster" if found.value > 1 else "slower"


def prompts_enough(found: Ratio | None) -> int | None:
    """How many prompts of this spread would tell a difference of `WORTH_TELLING`; None where nothing is known."""
    if found is None or found.low is None or found.high is None:
        return None
    half = math.log(found.high / found.low) / 2
    return max(FEWEST_PROMPTS, math.ceil(found.prompts * (half / math.log1p(WORTH_TELLING)) ** 2))
