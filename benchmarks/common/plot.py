"""Line plots as SVG text, both axes logarithmic; no plotting library needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
WIDTH, HEIGHT, LEFT, TOP = 250, 190, 46, 30
Points = Sequence[tuple[float, float]]


def panels(title: str, across: str, up: str, plots: Mapping[str, Mapping[str, Points]]) -> str:
    """One panel per entry of `plots`, side by side on the same scales; in each, one line per series of (x, y) > 0."""
    points = [point for series in plots.values() for line in series.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = 10 ** math.floor(math.log10(min(y for _, y in points))), max(y for _, y in points) * 1.15
    names = list(dict.fromkeys(name for series in plots.values() for name in series))
    total = LEFT + len(plots) * (WIDTH + LEFT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {TOP + HEIGHT + 70}" font-family="sans-serif" '
        'font-size="11" fill="#444">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{LEFT}" y="14" font-size="13">{escape(title)}</text>',
    ]
    for number, (heading, series) in enumerate(plots.items()):
        left = LEFT + number * (WIDTH + LEFT)

        def at(point: tuple[float, float], left: int = left) -> tuple[float, float]:
            return (
                left + WIDTH * _share(point[0], x_low, x_high),
                TOP + HEIGHT * (1 - _share(point[1], y_low, y_high)),
            )

        parts.append(f'<text x="{left + 4}" y="{TOP + 12}">{escape(heading)}</text>')
        parts.append(f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>')
        for tick in sorted({x for line in series.values() for x, _ in line}):
            x, _ = at((tick, y_low))
            parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 14}" text-anchor="middle">{tick:g}</text>')
        for tick in _ticks(y_low, y_high):
            _, y = at((x_low, tick))
            parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for name, line in series.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, line))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
            parts.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in map(at, line))
    parts.append(f'<text x="{total / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle">{escape(across)}</text>')
    parts.append(
        f'<text x="11" y="{TOP + HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 11 {TOP + HEIGHT / 2})">'
        f"{escape(up)}</text>"
    )
    for number, name in enumerate(names):
        x, colour = LEFT + 120 * number, COLOURS[number % len(COLOURS)]
        parts.append(f'<circle cx="{x}" cy="{TOP + HEIGHT + 50}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 9}" y="{TOP + HEIGHT + 54}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _share(value: float, low: float, high: float) -> float:
    return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) if high > low else 0.5


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10**decade for decade in decades for step in (1, 2, 5) if low <= step * 10**decade <= high]
