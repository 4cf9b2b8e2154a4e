"""The report as Markdown: everything, in the order in which a reader asks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from compatfix.conclusion import headline
from compatfix.model import Finding, Report, Statement
from compatfix.report.plaintext import one_line, visible
from compatfix.report.table import Table
from compatfix.report.tables import tables
from compatfix.summary import summary

MARKS = {"passed": "✅", "failed": "❌", "undecided": "❔", "unmeasured": "⬜"}


def to_markdown(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# compatfix {report.kind}"
    yield ""
    for name, value in report.subject.items():
        yield f"- {escape(name)}: {code(value)}"
    yield f"- compatfix {report.version}, {report.started}, {report.seconds:.0f} s"
    if report.verdict is not None:
        yield from ("", escape(headline(report)[1]), "")
        yield from (f"- {escape(sentence)}" for sentence in summary(report))
        yield from _verdict(report)
    if report.findings:
        yield from _findings(report.findings)
    for table in tables(report):
        yield from _table(table)
    if report.statements:
        yield from _statements(report.statements)
    if report.answers:
        yield from _answers(report)
    if report.next_step:
        yield from ("", "## Next", "", code(report.next_step))


def _verdict(report: Report) -> Iterator[str]:
    assert report.verdict is not None
    rows = tuple(
        (verdict.scope, f"{MARKS[verdict.status]} {verdict.status}", verdict.reason, verdict.next_step or "")
        for verdict in report.verdict.scopes
    )
    yield from _table(Table("Verdict by scope", ("scope", "verdict", "reason", "what would measure or mend it"), rows))


def _findings(findings: Iterable[Finding]) -> Iterator[str]:
    yield from ("", "## Findings", "")
    for finding in findings:
        place = f" {code(finding.location)}" if finding.location else ""
        known = ", known" if finding.known else ""
        yield f"- **{finding.code}** {finding.level}{known}, {finding.evidence}{place}: {escape(finding.message)}"
        if finding.fix:
            yield f"  - fix: {code(finding.fix)}"


def _statements(statements: Iterable[Statement]) -> Iterator[str]:
    topic = None
    for statement in statements:
        if statement.topic != topic:
            topic = statement.topic
            yield from ("", f"## {escape(topic.capitalize())}", "")
        yield f"- {escape(statement.text)} *({statement.evidence})*"


def _answers(report: Report) -> Iterator[str]:
    rows = tuple(
        (answer.question, answer.text, ", ".join(f"{k} {v:.3g}" for k, v in answer.numbers.items()))
        for answer in report.answers
    )
    yield from _table(Table("Probes", ("question", "answer", "numbers"), rows))


def _table(table: Table) -> Iterator[str]:
    yield from ("", f"## {escape(table.title)}", "")
    yield "| " + " | ".join(map(escape, table.columns)) + " |"
    yield "|" + "---|" * len(table.columns)
    for row in table.rows:
        yield "| " + " | ".join(escape(cell) for cell in row) + " |"
    if table.note:
        yield from ("", escape(table.note))


def code(text: object) -> str:
    """A code span; its fence is longer than any run of backticks in the text."""
    shown = one_line(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    pad = " " if len(fence) > 1 else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def escape(text: str) -> str:
    """Keeps code and paths from being read as Markdown or HTML."""
    text = visible(text)
    for mark in ("\\", "|", "*", "_", "<", "[", "`"):
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")
