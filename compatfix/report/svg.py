"""Small charts as inline SVG: plain shapes whose colours are classes of the page's style sheet, so both themes apply.

All are 340 units wide and drawn for a column of that many pixels or more, so that their text stays readable on a phone.
Every chart that tells series apart by colour does so by marker, order or label too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from compatfix.report.plaintext import one_line
from compatfix.report.style import SERIES

WIDTH = 340
_CHAR = 5.7  # the width of an average character at the size of labels
_ROW = 22


def colour_of(number: int) -> str:
    """The class of the n-th series; the first is that of plain decoding."""
    return SERIES[number] if number < len(SERIES) else SERIES[1 + (number - 1) % (len(SERIES) - 1)]


def bars(rows: Sequence[tuple[str, float, int]], *, label: str) -> str:
    """Horizontal bars from zero with their values. `rows` are name, value ≥ 0, number of the series."""
    left, largest = _margin([name for name, _, _ in rows]), max((value for _, value, _ in rows), default=0.0) or 1.0
    room = WIDTH - left - 44
    parts = []
    for index, (name, value, series) in enumerate(rows):
        y = index * _ROW
        width = max(room * value / largest, 1.0)
        parts.append(_text(left - 6, y + 14, name, anchor="end"))
        parts.append(_box(left, y + 4, width, 14, colour_of(series)))
        parts.append(_text(left + width + 5, y + 14.5, f"{value:.2f}"))
    height = len(rows) * _ROW + 4
    parts.append(_line(left, 0, left, height - 4, "axis"))
    return _svg(height, label, parts)


def lines(names: Sequence[str], values: Sequence[Sequence[float]], series: Sequence[int], *, label: str) -> str:
    """Shares between 0 and 1 by position (1, 2, …): one line per name, each with a marker of its own."""
    positions = max((len(line) for line in values), default=0)
    left, top, height = 34, 10, 140
    step = (WIDTH - left - 12) / max(positions - 1, 1)
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = top + height * (1 - share)
        parts.append(_line(left, y, WIDTH - 8, y, "axis" if share == 0 else "grid"))
        parts.append(_text(left - 6, y + 3.5, f"{share:.0%}", anchor="end", kind="soft small"))
    every = max(1, math.ceil(positions / 16))
    for position in range(0, positions, every):
        parts.append(
            _text(left + step * position, top + height + 13, str(position + 1), anchor="middle", kind="soft small")
        )
    for number, line in zip(series, values, strict=True):
        points = [(left + step * k, top + height * (1 - share)) for k, share in enumerate(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="{colour_of(number)}-line" fill="none" stroke-width="1.8" points="{path}"/>')
        parts += [_marker(x, y, number) for x, y in points]
    bottom, legend = _legend(names, series, top + height + 22, _marker)
    return _svg(bottom, label, parts + legend)


def stacked(rows: Sequence[tuple[str, Mapping[str, float]]], parts_in_order: Sequence[str], *, label: str) -> str:
    """Bars of shares that add up to 1: one bar per row, its parts in the same order everywhere."""
    left = _margin([name for name, _ in rows])
    room = WIDTH - left - 4
    drawn = []
    for index, (name, shares) in enumerate(rows):
        x, y = float(left), index * _ROW
        drawn.append(_text(left - 6, y + 14, name, anchor="end"))
        for number, part in enumerate(parts_in_order):
            width = room * shares.get(part, 0.0)
            if width > 0:
                # A gap of the page's colour parts neighbours that a reader cannot tell apart by colour.
                drawn.append(_box(x, y + 3, max(width - 1, 0.5), 15, colour_of(number)))
            x += width
    bottom, legend = _legend(list(parts_in_order), range(len(parts_in_order)), len(rows) * _ROW + 8, _swatch)
    return _svg(bottom, label, drawn + legend)


def histograms(rows: Sequence[tuple[str, Mapping[int, float], int]], *, label: str) -> str:
    """Small columns, one group per row above the same axis. `rows` are name, share by whole number, series."""
    longest = max((n for _, shares, _ in rows for n in shares), default=1)
    tallest = max((share for _, shares, _ in rows for share in shares.values()), default=1.0)
    left, band = _margin([name for name, _, _ in rows]), 44
    step = (WIDTH - left - 4) / longest
    parts = []
    for index, (name, shares, series) in enumerate(rows):
        floor = (index + 1) * band
        parts.append(_text(left - 6, floor - 4, name, anchor="end"))
        parts.append(_line(left, floor, WIDTH - 4, floor, "axis"))
        for number, share in shares.items():
            height = (band - 12) * share / tallest
            parts.append(
                _box(left + step * (number - 1) + 1, floor - height, max(step - 2, 1), height, colour_of(series))
            )
    floor = len(rows) * band + 13
    every = max(1, math.ceil(longest / 16))
    for number in range(1, longest + 1, every):
        parts.append(_text(left + step * (number - 0.5), floor, str(number), anchor="middle", kind="soft small"))
    return _svg(floor + 6, label, parts)


def cells(kinds: Sequence[str], tints: Mapping[str, str], marked: Sequence[int], *, label: str) -> str:
    """A grid of layers, 16 to a row, each with the first letter of its kind; `marked` layers have a thick border."""
    per_row, size = 16, 20
    rows = math.ceil(len(kinds) / per_row)
    parts = []
    for index, kind in enumerate(kinds):
        x, y = 20 + index % per_row * size, index // per_row * (size + 2)
        if index % per_row == 0:
            parts.append(_text(14, y + 14, str(index), anchor="end", kind="soft small"))
        parts.append(_box(x + 1, y + 1, size - 2, size - 2, tints[kind]))
        parts.append(_text(x + size / 2, y + 14, kind[:1].upper(), anchor="middle"))
    for index in marked:
        if 0 <= index < len(kinds):
            x, y = 20 + index % per_row * size, index // per_row * (size + 2)
            parts.append(f'<rect class="mark" x="{x + 1}" y="{y + 1}" width="{size - 2}" height="{size - 2}"/>')
    return _svg(rows * (size + 2) + 2, label, parts)


def dots(rows: Sequence[tuple[str, Sequence[tuple[float, bool]]]], limit: float, limit_name: str, *, label: str) -> str:
    """Values on a line per row, with a limit across all: rounds within it, crosses for those marked bad."""
    left = _margin([name for name, _ in rows]) + 6
    largest = max([limit, *(value for _, values in rows for value, _ in values)]) * 1.08 or 1.0
    room = WIDTH - left - 8
    height = len(rows) * _ROW
    parts = []
    for index, (name, values) in enumerate(rows):
        y = index * _ROW + 26
        parts.append(_text(left - 10, y + 4, name, anchor="end"))
        parts.append(_line(left, y, WIDTH - 8, y, "grid"))
        for value, bad in values:
            x = left + room * value / largest
            if bad:
                cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
                parts.append(f'<path class="series6-line" stroke-width="2.2" fill="none" d="{cross}"/>')
            else:
                parts.append(f'<circle class="series2" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    x = left + room * limit / largest
    parts.append(f'<path class="axis" stroke-dasharray="4 3" d="M{x:.1f} 14V{height + 18}"/>')
    anchor = "start" if x < WIDTH / 2 else "end"
    parts.append(_text(x, 9, limit_name, anchor=anchor, kind="soft small"))
    for share in (0.0, 0.5, 1.0):
        where = ("start", "middle", "end")[round(share * 2)]
        tick = f"{largest * share:.2g}"
        parts.append(_text(left + room * share, height + 30, tick, anchor=where, kind="soft small"))
    return _svg(height + 36, label, parts)


def ranges(
    rows: Sequence[tuple[str, float, tuple[float, float] | None, int]], one: float, floor: float, *, label: str
) -> str:
    """Ratios as marks with the line of their interval. `one` is no difference, its band from `one / floor` to
    `one * floor`; rows are name, value, (low, high) or None, number of the series."""
    ends = [end for _, value, spread, _ in rows for end in (value, *(spread or ()))]
    least: float = min([one / floor, *ends])
    most: float = max([one * floor, *ends])
    margin = (most - least) * 0.05 or 0.1
    left = _margin([name for name, _, _, _ in rows])
    height = len(rows) * _ROW + 4

    def place(value: float) -> float:
        return left + (WIDTH - left - 8) * (value - least + margin) / (most - least + 2 * margin)

    parts = [_box(place(one / floor), 0, max(place(one * floor) - place(one / floor), 1), height, "band")]
    parts.append(_line(place(one), 0, place(one), height, "axis"))
    for index, (name, value, spread, number) in enumerate(rows):
        y = index * _ROW + 12
        parts.append(_text(left - 6, y + 3.5, name, anchor="end"))
        if spread is not None:
            path = f"M{place(spread[0]):.1f} {y}H{place(spread[1]):.1f}"
            parts.append(f'<path class="{colour_of(number)}-line" fill="none" stroke-width="1.8" d="{path}"/>')
        parts.append(_marker(place(value), y, number))
    for value in (least, one, most):
        if value == one or abs(place(value) - place(one)) > 40:
            parts.append(_text(place(value), height + 12, f"{value:.2f}", anchor="middle", kind="soft small"))
    return _svg(height + 18, label, parts)


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(one_line(label))}">'
    return head + "".join(parts) + "</svg>"


def _margin(names: Sequence[str]) -> int:
    return 10 + int(_CHAR * max((len(_short(name)) for name in names), default=4))


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= 16 else name[:15] + "…"


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    look = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{look}>{escape(_short(text))}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _marker(x: float, y: float, number: int) -> str:
    """A shape per series: circle, square, triangle, diamond, and again."""
    kind = colour_of(number)
    outlines = (
        f"M{x - 3.2:.1f} {y - 3.2:.1f}h6.4v6.4h-6.4z",
        f"M{x:.1f} {y - 4.2:.1f}l4 7.2h-8z",
        f"M{x:.1f} {y - 4.4:.1f}l4.2 4.4l-4.2 4.4l-4.2 -4.4z",
    )
    if number % 4 == 1:
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>'
    return f'<path class="{kind}" d="{outlines[(number + 2) % 4 % 3]}"/>'


def _swatch(x: float, y: float, number: int) -> str:
    return _box(x - 5, y - 5, 10, 10, colour_of(number))


def _legend(names: Sequence[str], series: Sequence[int], top: float, draw: object) -> tuple[float, list[str]]:
    """The names with their marks, in as many lines as they need; returns the bottom and the parts."""
    assert callable(draw)
    parts: list[str] = []
    for x, y, name, number in _flow(names, series, top):
        parts.append(draw(x + 6, y, number))
        parts.append(_text(x + 15, y + 3.5, name))
    return (max((y for _, y, _, _ in _flow(names, series, top)), default=top) + 9, parts)


def _flow(names: Sequence[str], series: Sequence[int], top: float) -> Iterator[tuple[float, float, str, int]]:
    x, y = 0.0, top + 6
    for name, number in zip(names, series, strict=True):
        width = 15 + _CHAR * len(_short(name)) + 14
        if x and x + width > WIDTH:
            x, y = 0.0, y + 16
        yield x, y, name, number
        x += width
