"""Rounding or corruption: the rule alone, on numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compatfix.validate.rounding import FEWEST, Spread, corrupted, spread, token_kind

distances = st.floats(0, 1e6)
NOISE = Spread(200, 0.1, 0.5)
UNIT = 0.01


def test_what_plain_decoding_does_to_itself_is_rounding():
    assert corrupted(NOISE, NOISE, UNIT) is None
    assert corrupted(Spread(), NOISE, UNIT) is None


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        (Spread(64, 0.16, 0.5), "0.16 off on average, where rounding explains 0.15"),
        (Spread(64, 0.1, 1.6), "up to 1.6 off, where rounding explains 1.5"),
        (Spread(1, 1.6, 1.6), "up to 1.6 off"),
        (spread([math.nan]), "up to inf off"),
    ],
)
def test_what_moves_everything_a_little_or_something_a_lot_is_not(errors, words):
    why = corrupted(errors, NOISE, UNIT)
    assert why is not None and words in why


def test_a_mean_over_few_values_decides_nothing():
    assert corrupted(Spread(FEWEST - 1, 0.16, 0.5), NOISE, UNIT) is None


def test_where_plain_decoding_agrees_with_itself_the_spacing_of_the_dtype_is_the_floor():
    exact = Spread(200, 0.0, 0.0)
    assert corrupted(Spread(64, UNIT / 8, UNIT), exact, UNIT) is None
    assert corrupted(Spread(64, UNIT / 4, UNIT), exact, UNIT) is not None
    assert corrupted(Spread(64, 0.0, 4 * UNIT), exact, UNIT) is not None


@pytest.mark.parametrize(
    ("behind", "kind"),
    [(0.0, "rounding"), (0.99, "rounding"), (1.01, "corruption"), (None, "corruption"), (math.inf, "corruption")],
)
def test_a_token_may_lie_twice_the_noise_behind(behind, kind):
    assert token_kind(behind, NOISE, UNIT) == kind


@given(st.lists(distances), st.lists(distances))
def test_spreads_add_up(one, other):
    total = spread(one) + spread(other)
    whole = spread([*one, *other])
    assert (total.count, total.largest) == (whole.count, whole.largest)
    assert total.mean == pytest.approx(whole.mean)


@given(st.lists(distances, min_size=1), st.floats(1e-6, 1e6))
def test_the_rule_knows_no_scale(values, scale):
    errors, noise = spread(values), Spread(200, 1.0, 4.0)
    scaled = spread(value * scale for value in values)
    by_scale = corrupted(scaled, Spread(200, scale, 4.0 * scale), 0.1 * scale)
    near = abs(errors.largest - 12.0) < 1e-3 or abs(errors.mean - 1.5) < 1e-3
    assert near or (corrupted(errors, noise, 0.1) is None) == (by_scale is None)
