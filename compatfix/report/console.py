"""The report on a terminal: a screen or two; everything under -v.

Source code and paths are printed with Rich's markup off, since it would eat square brackets.
"""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from compatfix.conclusion import headline
from compatfix.model import Answer, Finding, Report, Statement, Verdict
from compatfix.report.plaintext import visible
from compatfix.report.table import Table
from compatfix.report.tables import tables
from compatfix.summary import TITLE, summary

STATUS_STYLES = {"passed": "green", "failed": "bold red", "undecided": "yellow", "unmeasured": "dim"}
LEVEL_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}
PIPE_WIDTH = 110
# Topics whose lines are short and many.
COMPACT = ("draft", "tiny model")


def show(report: Report, *, verbose: bool = False, console: Console | None = None) -> None:
    """Prints `report`; the default is standard output, at a fixed width and without trailing blanks in a pipe."""
    if console is None and not sys.stdout.isatty():
        text = io.StringIO()
        show(report, verbose=verbose, console=_console(file=text, width=PIPE_WIDTH))
        print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))
        return
    out = console or _console()
    if report.statements:
        _show_statements(out, report.statements if verbose else tuple(_joined(report.statements)))
    if report.answers:
        _show_answers(out, report.answers, verbose)
    for table in tables(report):
        if table.brief or verbose:
            _show_table(out, table)
    if report.findings:
        _show_findings(out, report.findings, verbose)
    if report.verdict is not None:
        _show_verdict(out, report.verdict)
        _show_summary(out, summary(report))
    if report.next_step:
        out.print()
        out.print(f"next: {visible(report.next_step)}", soft_wrap=True)


def show_short(report: Report) -> None:
    """What `report` came to, and nothing else: its subject, the sentences of its summary, and the conclusion."""
    out = _console() if sys.stdout.isatty() else _console(width=PIPE_WIDTH)
    subject = report.subject
    names = [visible(subject[name]) for name in ("tree", "target") if subject.get(name)]
    out.print(Text(f"{report.kind} of {' against '.join(names)}", style="bold"), soft_wrap=True)
    for sentence in summary(report):
        _hanging(out, Text("- "), sentence)
    if report.verdict is not None:
        out.print(headline(report)[1], soft_wrap=True)
    out.print()


def _console(**options: Any) -> Console:
    return Console(markup=False, highlight=False, emoji=False, **options)


def _show_statements(out: Console, statements: Iterable[Statement]) -> None:
    topic = None
    for statement in statements:
        if statement.topic != topic:
            topic = statement.topic
            out.print(Text(topic, style="bold"))
        _hanging(out, Text(f"{statement.evidence:<8} ", style="dim"), statement.text)


def _joined(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Topics of short lines become a line for each kind of evidence, and for what was kept and lost."""
    group: list[Statement] = []
    for statement in (*statements, None):
        if group and (statement is None or _kind(statement) != _kind(group[0]) or statement.topic not in COMPACT):
            lead = group[0].key.split(".")[0]
            head = f"{lead}: " if lead in ("kept", "lost") else ""
            yield replace(group[0], text=head + "; ".join(entry.text for entry in group))
            group = []
        if statement is None:
            return
        if statement.topic in COMPACT:
            group.append(statement)
        else:
            yield statement


def _kind(statement: Statement) -> tuple[str, str, bool]:
    return statement.topic, statement.evidence, statement.key.startswith("lost.")


def _show_answers(out: Console, answers: Iterable[Answer], verbose: bool) -> None:
    out.print(Text("behaviour, measured on a tiny model of the same class", style="bold"))
    for answer in answers:
        mark, style = {True: ("ok", "green"), False: ("BAD", "red"), None: ("", "dim")}[answer.ok]
        numbers = ", ".join(f"{name} {number:.3g}" for name, number in answer.numbers.items())
        text = f"{answer.question} {answer.text}" + (f" [{numbers}]" if verbose and numbers else "")
        _hanging(out, Text(f"{mark:<8} ", style=style), text)


def _hanging(out: Console, head: Text, text: str) -> None:
    """One entry whose further lines start below its text and not below its head."""
    text = visible(text)
    indent = min(len(head), 9)
    width = max(out.width - len(head), 20)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    out.print(head.append(lines[0], style="default"), soft_wrap=True)
    for line in lines[1:]:
        out.print(" " * indent + line, soft_wrap=True)


def _show_table(out: Console, table: Table) -> None:
    out.print()
    out.print(Text(table.title, style="bold"))
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in table.columns:
        grid.add_column(column, overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    out.print(grid)
    if table.note:
        out.print(Text(table.note, style="dim"))


def _show_findings(out: Console, findings: tuple[Finding, ...], verbose: bool) -> None:
    out.print()
    for finding in findings:
        if finding.level == "note" and not verbose:
            continue
        place = f" {finding.location}" if finding.location else ""
        known = " (known)" if finding.known else ""
        head = Text(f"{finding.code} {finding.level}{known}", style=LEVEL_STYLES[finding.level])
        head.append(f"{place}  {finding.message}", style="default")
        out.print(head, soft_wrap=True)
        if finding.fix:
            out.print(f"      fix: {finding.fix}", soft_wrap=True)
    notes = sum(finding.level == "note" for finding in findings)
    if notes and not verbose:
        out.print(Text(f"{notes} note{'s' * (notes > 1)} more with -v", style="dim"))


def _show_verdict(out: Console, verdict: Verdict) -> None:
    out.print()
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for entry in verdict.scopes:
        reason = entry.reason
        if entry.next_step:
            reason += f" → {entry.next_step}"
        grid.add_row(entry.scope, Text(entry.status, style=STATUS_STYLES[entry.status]), reason)
    out.print(grid)


def _show_summary(out: Console, sentences: tuple[str, ...]) -> None:
    out.print()
    out.print(Text(TITLE, style="bold"))
    for sentence in sentences:
        _hanging(out, Text("- "), sentence)
