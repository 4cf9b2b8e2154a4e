"""Renderers and exit codes on hand-made reports."""

import json
from pathlib import Path

import pytest

from compatfix.api import green, worst_at_least
from compatfix.errors import UsageError
from compatfix.model import SCOPES, Finding, Location, Report, ScopeVerdict, Statement, Verdict
from compatfix.report import render
from compatfix.report.files import write_report
from compatfix.report.markdown import to_markdown
from compatfix.serial import from_plain, to_json


def report(findings=(), **statuses):
    scopes = tuple(ScopeVerdict(scope, statuses.get(scope, "unmeasured"), "why") for scope in SCOPES)
    return Report(
        "gate", {"tree": "a[b]c"}, findings=tuple(findings), verdict=Verdict(scopes), started="2026-01-02T03:04:05"
    )


ERROR = Finding("CF901", "error", "measured", "token [7] is *wrong* | <b>", Location("a_b.py", 3, 1), fix="fix [it]")
WARNING = Finding("CF002", "warning", "measured", "slow")


@pytest.mark.parametrize(
    ("subject", "required", "expected"),
    [
        (report(code="passed"), ["code"], True),
        (report(code="passed"), ["code", "weights"], False),
        (report(code="undecided"), ["code"], False),
        (report(code="failed"), ["code"], False),
        (report(), ["code"], False),
        (report([WARNING], code="passed"), ["code"], True),
        (report([ERROR], code="passed"), ["code"], False),
        (Report("gate", {}), ["code"], False),
        (Report("gate", {}), [], False),
    ],
)
def test_green_takes_every_required_scope_and_no_error(subject, required, expected):
    assert green(subject, required) is expected


def test_fail_on_counts_graver_levels():
    assert worst_at_least(report([WARNING]), "warning")
    assert worst_at_least(report([ERROR]), "note")
    assert not worst_at_least(report([WARNING]), "error")


def test_json_comes_back_as_it_was():
    subject = report([ERROR, WARNING], code="failed")
    assert from_plain(Report, json.loads(to_json(subject))) == subject


def test_brackets_and_marks_survive_every_format(capsys):
    subject = report([ERROR], code="failed")
    render(subject, "text")
    text = capsys.readouterr().out
    assert "token [7] is *wrong* | <b>" in text
    assert "fix: fix [it]" in text
    markdown = to_markdown(subject)
    assert r"token \[7] is \*wrong\* \| \<b>" in markdown
    assert "`a_b.py:3:1`" in markdown


def test_statements_show_their_evidence(capsys):
    statements = (Statement("cache", "kinds", "48 linear", "measured"), Statement("cache", "x", "maybe", "assumed"))
    render(Report("inspect", {}, statements=statements), "text")
    assert capsys.readouterr().out.splitlines()[:3] == ["cache", "measured 48 linear", "assumed  maybe"]


def test_reports_of_one_second_do_not_overwrite_each_other(tmp_path):
    first = write_report(report(code="passed"), tmp_path / "reports")
    second = write_report(report(code="failed"), tmp_path / "reports")
    assert first != second
    assert (tmp_path / "reports" / "latest.txt").read_text() == f"{second.name}\n"
    assert sorted(path.name for path in first.iterdir()) == [
        "codequality.json",
        "junit.xml",
        "report.html",
        "report.json",
        "report.md",
    ]
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == sorted(
        [first.name, second.name, "latest.txt"]
    )


def test_a_report_directory_that_is_a_file(tmp_path: Path):
    (tmp_path / "reports").write_text("")
    with pytest.raises(UsageError, match="cannot write the report under"):
        write_report(report(), tmp_path / "reports")
