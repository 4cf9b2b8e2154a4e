"""What a ratio of times is worth: against tables, against simulated prompts, and for whatever times come."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compatfix.validate.intervals import (
    Ratio,
    difference,
    floor_of,
    interval_of_mean,
    paired_logs,
    prompts_enough,
    quartiles,
    ratio,
    t_quantile,
)

SECONDS = st.floats(1e-6, 1e4)
TIMES = st.dictionaries(st.integers(0, 9), st.lists(st.one_of(st.none(), SECONDS), min_size=1, max_size=4), max_size=6)


@pytest.mark.parametrize(
    ("share", "freedom", "tabled"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 9, 2.262),
        (0.995, 7, 3.499),
        (0.995, 15, 2.947),
    ],
)
def test_t_is_that_of_the_tables(share: float, freedom: int, tabled: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(tabled, rel=5e-3)


def test_quartiles_lie_between_order_statistics() -> None:
    assert quartiles([4.0, 1.0, 2.0, 3.0]) == (1.75, 2.5, 3.25)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_repetitions_are_joined_before_prompts_are_counted() -> None:
    """Ten repetitions of one prompt are one prompt, and a repetition that lacks one of the two is left out."""
    assert paired_logs({0: [2.0] * 10}, {0: [1.0] * 10}) == [pytest.approx(math.log(2))]
    assert paired_logs({0: [2.0, None, 8.0]}, {0: [1.0, 1.0, None], 1: [1.0]}) == [pytest.approx(math.log(2))]
    found = ratio({0: [2.0] * 10}, {0: [1.0] * 10}, 0.95, 0)
    assert found == Ratio(pytest.approx(2.0), None, None, 1)
    assert difference(found, 0.0) == "noise"


@pytest.mark.parametrize(
    "draw", [random.Random.gauss, lambda r, m, s: m + s * (r.expovariate(1) - 1)], ids=["normal", "skewed"]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(draw) -> None:
    """8 prompts, 95 %: a plain percentile interval covers about 90 % of the time here."""
    source = random.Random(1)
    held = 0
    for seed in range(120):
        low, high = interval_of_mean([draw(source, 0.3, 0.1) for _ in range(8)], 0.95, seed)
        held += low <= 0.3 <= high
    assert held >= 108


@settings(max_examples=40, deadline=None)
@given(TIMES, TIMES, st.floats(0.001, 1000))
def test_the_unit_of_time_and_the_order_of_the_two_do_not_matter(slow, fast, unit) -> None:
    one, back = ratio(slow, fast, 0.95, 3), ratio(fast, slow, 0.95, 3)
    scaled = ratio(
        *({p: [t and t * unit for t in line] for p, line in times.items()} for times in (slow, fast)), 0.95, 3
    )
    if one is None:
        assert back is None
        assert scaled is None
        return
    assert back is not None
    assert scaled is not None
    assert one.value * back.value == pytest.approx(1)
    assert scaled.value == pytest.approx(one.value, rel=1e-6)
    if one.low is not None and one.high is not None:
        assert one.low <= one.value * (1 + 1e-9)
        assert one.high >= one.value * (1 - 1e-9)


@pytest.mark.parametrize(
    ("found", "floor", "word"),
    [
        (Ratio(1.5, 1.3, 1.7, 8), 0.02, "faster"),
        (Ratio(0.5, 0.4, 0.6, 8), 0.02, "slower"),
        (Ratio(1.2, 0.9, 1.6, 8), 0.02, "noise"),
        (Ratio(1.01, 1.005, 1.015, 8), 0.02, "noise"),
        (Ratio(1.5, 1.3, 1.7, 8), None, "noise"),
        (None, 0.02, "noise"),
    ],
)
def test_a_difference_is_one_only_beyond_its_interval_and_the_floor(found, floor, word) -> None:
    assert difference(found, floor) == word


def test_the_floor_is_the_far_end_of_plain_decoding_against_itself() -> None:
    assert floor_of(Ratio(1.0, 0.9, 1.05, 8)) == pytest.approx(-math.log(0.9))
    assert floor_of(Ratio(1.0, None, None, 1)) is None


def test_how_many_prompts_would_be_enough() -> None:
    assert prompts_enough(Ratio(1.5, 1.5 / 1.1025, 1.5 * 1.1025, 8)) == 32  # twice as wide as 5 % needs four times
    assert prompts_enough(Ratio(1.5, 1.499, 1.501, 16)) == 8
