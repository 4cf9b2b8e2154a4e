"""A comparison as text, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from compatfix.model import Finding
from compatfix.report.compare import Comparison, Number
from compatfix.report.markdown import code, escape
from compatfix.report.plaintext import one_line
from compatfix.serial import to_plain


def comparison_text(found: Comparison, form: str) -> str:
    """The comparison as "text", "json" or "md", without a trailing newline."""
    if form == "json":
        return json.dumps(_plain(found), indent=2, ensure_ascii=False)
    return "\n".join(_markdown(found) if form == "md" else _text(found))


def conclusion_of(found: Comparison) -> str:
    if found.worse:
        more = f" (and {len(found.worse) - 1} more)" if len(found.worse) > 1 else ""
        return f"worse: {one_line(found.worse[0])}{more}"
    return "not worse"


def _plain(found: Comparison) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(found)
    plain["numbers"] = [{**to_plain(number), "difference": number.difference} for number in found.numbers]
    return plain


def _text(found: Comparison) -> Iterator[str]:
    for change in found.subject:
        yield f"{change.name}: {one_line(change.before)} → {one_line(change.after)}"
    yield from map(one_line, found.incomparable)
    rows = [(c.name, c.before, c.after, c.note or "same") for c in found.scopes]
    yield from _aligned(("scope", "before", "after", ""), rows)
    for title, findings in (("new", found.new), ("gone", found.gone)):
        for finding in findings:
            yield f"{title:<4} {_finding(finding)}"
    changed = _changed(found)
    yield from _aligned(("number", "before", "after", "difference"), [_cells(number) for number in changed])
    yield from _rest(found, changed)


def _markdown(found: Comparison) -> Iterator[str]:
    yield "# compatfix report compare"
    yield from ("", escape(conclusion_of(found)))
    if found.subject:
        subject = [(c.name, c.before, c.after) for c in found.subject]
        yield from _table("What was run", ("", "before", "after"), subject)
    if found.incomparable:
        yield from ("", *(f"- {escape(line)}" for line in found.incomparable))
    rows = [(c.name, c.before, c.after, c.note or "same") for c in found.scopes]
    yield from _table("Verdict by scope", ("scope", "before", "after", ""), rows)
    for title, findings in (("New findings", found.new), ("Findings that are gone", found.gone)):
        if findings:
            yield from ("", f"## {title}", "")
            for f in findings:
                place = f" {code(f.location)}" if f.location else ""
                yield f"- **{f.code}** {f.level}{place}: {escape(f.message)}"
    changed = _changed(found)
    yield from _table("Numbers that changed", ("number", "before", "after", "difference"), map(_cells, changed))
    yield from ("", *_rest(found, changed))


def _changed(found: Comparison) -> list[Number]:
    return [number for number in found.numbers if number.before != number.after]


def _rest(found: Comparison, changed: list[Number]) -> Iterator[str]:
    same = len(found.numbers) - len(changed)
    if same:
        yield f"{same} other numbers are the same"


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    listed = list(rows)
    if not listed:
        return
    yield from ("", f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns))
    for row in listed:
        yield "| " + " | ".join(map(escape, row)) + " |"


def _aligned(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    listed = [columns, *rows]
    if len(listed) == 1:
        return
    widths = [max(len(row[column]) for row in listed) for column in range(len(columns))]
    yield ""
    for row in listed:
        yield "  ".join(one_line(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""


def _cells(number: Number) -> tuple[str, str, str, str]:
    change = number.difference
    told = "" if change is None else "0" if change == 0 else f"{change:+.4g}"
    if change and number.before:
        told += f" ({change / abs(number.before):+.0%})"
    if number.noise and change:
        told += ", noise"
    return number.name, _number(number.before), _number(number.after), told


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _finding(finding: Finding) -> str:
    place = f" {finding.location}" if finding.location else ""
    return f"{one_line(f'{finding.code} {finding.level}{place}')}  {one_line(finding.message)}"
