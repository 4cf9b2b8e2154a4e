"""Colours of the page: contrast by WCAG's formula, in both themes."""

import re

import pytest

from compatfix.report.style import DARK, GRAPHIC_PAIRS, LIGHT, TEXT_PAIRS, style_sheet


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_formula():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("pairs", "least"), [(TEXT_PAIRS, 4.5), (GRAPHIC_PAIRS, 3)], ids=["text", "graphics"])
def test_contrast(theme, pairs, least):
    assert {pair: c for pair in pairs if (c := contrast(theme[pair[0]], theme[pair[1]])) < least} == {}


def test_both_themes_define_the_same_colours_and_every_colour_that_is_used():
    assert set(LIGHT) == set(DARK)
    assert set(re.findall(r"var\(--([a-z_0-9]+)\)", style_sheet())) <= set(LIGHT)
