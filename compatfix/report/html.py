"""The report as one HTML file: no script, no font, no image, nothing fetched; light and dark; readable on a phone.

A status or a kind of evidence is always written out, never told by colour alone. Every text that a run, a model or a
path chose is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from compatfix.conclusion import headline
from compatfix.model import Answer, Finding, Report, ScopeVerdict, Statement
from compatfix.report.charts import Chart, absent, charts
from compatfix.report.plaintext import visible
from compatfix.report.style import style_sheet
from compatfix.report.table import Table
from compatfix.report.tables import tables
from compatfix.summary import TITLE, summary

# The browser itself refuses whatever this file does not hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
MARKS = {"passed": "✓", "failed": "✕", "undecided": "?", "unmeasured": "–"}
_NUMBER = re.compile(r"^[-+]?[\d.,]+(e[-+]?\d+)?[%×]?$|^–?$")
_DRAWN = ("Benchmark", "Acceptance by block position")


def to_html(report: Report) -> str:
    """The whole page. Raises nothing, whatever the texts in the report are."""
    return "\n".join(_page(report)) + "\n"


def _page(report: Report) -> Iterator[str]:
    sections = list(_sections(report))
    name = f"compatfix {report.kind}"
    tree = report.subject.get("tree") or report.subject.get("target") or ""
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
    yield f"<title>{_t(name)}: {_t(tree)}</title>"
    yield f"<style>{style_sheet()}</style></head>"
    yield '<body><a class="skip" href="#main">Skip to the verdict</a>'
    yield f"<header><h1>{_t(name)}</h1>"
    status, words = headline(report)
    if status:
        yield f'<p class="headline">{_badge(status)}<span>{_t(words)}</span></p>'
    yield _subject(report)
    links = "".join(f'<li><a href="#{anchor}">{_t(title)}</a></li>' for anchor, title, _ in sections)
    yield f'<nav aria-label="Contents"><ul>{links}</ul></nav></header>'
    yield '<main id="main">'
    for anchor, title, body in sections:
        yield f'<section id="{anchor}" aria-labelledby="{anchor}-title"><h2 id="{anchor}-title">{_t(title)}</h2>'
        yield body
        yield "</section>"
    yield "</main>"
    yield f"<footer>compatfix {_t(report.version)}, {_t(report.started)}, {report.seconds:.0f} s; report.json beside "
    yield "this file holds the same for machines.</footer></body></html>"


def _sections(report: Report) -> Iterator[tuple[str, str, str]]:
    """Anchor, title, body of every part that has something to say."""
    if report.verdict is not None:
        yield "short", TITLE.capitalize(), _list("plain", (f"<li>{_t(sentence)}</li>" for sentence in summary(report)))
        yield "verdict", "Verdict by scope", _list("scopes", (_scope(entry) for entry in report.verdict.scopes))
    if report.findings:
        yield "findings", _counted(report.findings), _findings(report.findings)
    drawn = charts(report)
    lacking = absent(report)
    if drawn or lacking:
        yield "measured", "Measured", "".join(map(_figure, drawn)) + _absent(lacking)
    others = [table for table in tables(report) if not table.title.startswith(_DRAWN)]
    if others:
        yield "tables", "Everything that was run", "".join(_block(table) for table in others)
    if report.answers:
        yield "probes", "Behaviour, measured on a tiny model of the same class", _scrolled(_answers(report.answers))
    if report.statements:
        yield "facts", "What is known, and how", _statements(report.statements)
    if report.next_step:
        yield "next", "Next", f'<p class="fix code">{_t(report.next_step)}</p>'


def _subject(report: Report) -> str:
    rows = "".join(f"<dt>{_t(k)}</dt><dd class=code>{_t(v)}</dd>" for k, v in report.subject.items())
    return f'<dl class="subject">{rows}</dl>'


def _scope(entry: ScopeVerdict) -> str:
    step = f'<p class="muted">→ {_t(entry.next_step)}</p>' if entry.next_step else ""
    head = f"<h3>{_t(entry.scope)} {_badge(entry.status)}</h3>"
    return f"<li>{head}<div><p>{_t(entry.reason)}</p>{step}</div></li>"


def _badge(status: str) -> str:
    return (
        f'<span class="badge {_t(status)}"><span aria-hidden="true">{MARKS.get(status, "")} </span>{_t(status)}</span>'
    )


def _counted(findings: Iterable[Finding]) -> str:
    found = list(findings)
    counts = [(sum(f.level == level for f in found), level) for level in ("error", "warning", "note")]
    told = ", ".join(f"{count} {level}{'s' * (count > 1)}" for count, level in counts if count)
    return f"Findings ({told})"


def _findings(findings: Iterable[Finding]) -> str:
    order = {"error": 0, "warning": 1, "note": 2}
    return _list("findings", (_finding(f) for f in sorted(findings, key=lambda f: order.get(f.level, 3))))


def _finding(finding: Finding) -> str:
    kind = {"note": "note-level"}.get(finding.level, finding.level)
    place = f'<span class="code">{_t(finding.location)}</span>' if finding.location else ""
    known = '<span class="badge known">known</span>' if finding.known else ""
    fix = f'<p class="fix">fix: <code>{_t(finding.fix)}</code></p>' if finding.fix else ""
    evidence = f'<span class="evidence">{_t(finding.evidence)}</span>'
    return (
        f'<li><p class="head"><span class="badge {_t(kind)}">{_t(finding.level)}</span>{known}'
        f'<strong class="code">{_t(finding.code)}</strong>{place}{evidence}</p>'
        f"<p>{_t(finding.message)}</p>{fix}</li>"
    )


def _figure(chart: Chart) -> str:
    return (
        f'<figure id="{_t(chart.name)}" aria-labelledby="{_t(chart.name)}-title"><h3 id="{_t(chart.name)}-title">'
        f"{_t(chart.title)}</h3><figcaption>{_t(chart.caption)}</figcaption>{chart.drawing}"
        f"{_scrolled(_table(chart.table))}</figure>"
    )


def _absent(lacking: Iterable[tuple[str, str]]) -> str:
    items = [f"<li><strong>{_t(name)}</strong>: {_t(how)}</li>" for name, how in lacking]
    if not items:
        return ""
    return f"<h3>Not measured in this run, and what would measure it</h3><ul>{''.join(items)}</ul>"


def _block(table: Table) -> str:
    note = f'<p class="note">{_t(table.note)}</p>' if table.note else ""
    return f'<section class="wide">{_scrolled(_table(table))}{note}</section>'


def _scrolled(table: tuple[str, str]) -> str:
    """A table wider than the screen scrolls by itself, by keyboard too; the page never does."""
    name, html = table
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{_t(name)}">{html}</div>'


def _table(table: Table) -> tuple[str, str]:
    width = len(table.columns)
    rows = [(*row, *("",) * (width - len(row))) for row in table.rows]
    kinds = [_kind([row[column] for row in rows]) for column in range(width)]
    head = "".join(f'<th scope="col"{_class(k)}>{_t(c)}</th>' for c, k in zip(table.columns, kinds, strict=True))
    body = "".join(
        "<tr>"
        + f'<th scope="row"{_class("short" if len(row[0]) <= 24 else "")}>{_t(row[0])}</th>'
        + "".join(f"<td{_class(k)}>{_t(cell)}</td>" for cell, k in zip(row[1:], kinds[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    html = f"<table><caption>{_t(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return table.title, html


def _kind(cells: list[str]) -> str:
    if all(_NUMBER.match(cell) for cell in cells):
        return "number"
    return "prose" if any(len(cell) > 36 for cell in cells) else ""


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _answers(answers: Iterable[Answer]) -> tuple[str, str]:
    marks = {True: "ok", False: "BAD", None: ""}
    rows = tuple(
        (a.question, marks[a.ok], a.text, ", ".join(f"{name} {number:.3g}" for name, number in a.numbers.items()))
        for a in answers
    )
    return _table(Table("Probes", ("question", "", "answer", "numbers"), rows))


def _statements(statements: Iterable[Statement]) -> str:
    topics: dict[str, list[Statement]] = {}
    for statement in statements:
        topics.setdefault(statement.topic, []).append(statement)
    return "".join(
        f'<h3 class="topic">{_t(topic.capitalize())}</h3>'
        + _list("plain", (f'<li>{_t(s.text)} <span class="evidence">({_t(s.evidence)})</span></li>' for s in group))
        for topic, group in topics.items()
    )


def _list(kind: str, items: Iterable[str]) -> str:
    # Without list markers some browsers stop calling it a list.
    return f'<ul class="plain {kind}" role="list">{"".join(items)}</ul>'


def _t(text: object) -> str:
    return escape(visible(text))
