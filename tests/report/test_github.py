"""GitHub's workflow commands and step summary, GitLab's code quality report."""

import json
import re
from dataclasses import replace

import pytest

from compatfix.model import Finding, Location, Report
from compatfix.report.github import append_summary, commands, runs_there
from compatfix.report.gitlab import to_codequality
from compatfix.report.paths import repository_path

from .made import HOSTILE, example, hostile, verdict

ERROR = Finding("CF901", "error", "measured", "50% wrong,\nreally: so", Location("model/a.py", 3, 7), "do: this, now")
WARNING = Finding("CF002", "warning", "measured", "slow")
NOTE = Finding("CF603", "note", "read", "one device", Location("b.py", 9))


def report(*findings, **more):
    return Report("gate", {"tree": "vendor/x"}, findings=findings, verdict=verdict(code="passed"), **more)


def test_each_finding_is_a_command_with_its_place_in_the_repository():
    assert list(commands(report(WARNING, ERROR, NOTE))) == [
        "::error file=vendor/x/model/a.py,line=3,col=7,title=CF901 error::"
        "50%25 wrong,%0Areally: so%0Afix: do: this, now",
        "::warning title=CF002 warning::slow",
        "::notice file=vendor/x/b.py,line=9,title=CF603 note::one device",
    ]


def test_commas_and_colons_of_properties_are_escaped():
    (line,) = commands(report(replace(ERROR, location=Location("a,b:c%.py", 1), message="m", fix=None)))
    assert line == "::error file=vendor/x/a%2Cb%3Ac%25.py,line=1,title=CF901 error::m"


def test_scopes_that_had_to_pass_are_told():
    failed = Report("gate", {}, verdict=verdict(code="undecided", weights="failed"), required=("code", "draft"))
    assert list(commands(failed)) == [
        "::error title=scope code%3A undecided::why code",
        "::warning title=scope weights%3A failed::why weights",
        "::error title=scope draft%3A unmeasured::why draft",
    ]
    assert list(commands(replace(failed, verdict=verdict(code="passed"), required=("code",)))) == []


def test_a_level_that_fails_the_run_is_an_error_and_a_known_finding_is_a_notice():
    kinds = [line.split(" ")[0] for line in commands(report(WARNING, ERROR, fail_on="warning"))]
    assert kinds == ["::error", "::error"]
    (known,) = commands(report(replace(ERROR, known=True, message="m", fix=None)))
    assert known == "::notice file=vendor/x/model/a.py,line=3,col=7,title=CF901 error (known)::m"


def test_hostile_text_makes_no_command_of_its_own():
    lines = list(commands(hostile()))
    assert lines and all(re.fullmatch(r"::(error|warning|notice) [^\n\r]*", line) for line in lines)
    assert all("\x1b" not in line for line in lines)


def test_the_summary_is_appended_where_there_is_one(tmp_path):
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    assert append_summary(example(), {"GITHUB_STEP_SUMMARY": str(path)})
    text = path.read_text()
    assert text.startswith("before\n# compatfix gate\n")
    assert "## Verdict by scope" in text
    assert not append_summary(example(), {})
    assert not append_summary(example(), {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "where")})


def test_a_summary_never_outgrows_what_github_takes(tmp_path):
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * ((1 << 20) - 1000))
    assert append_summary(example(), {"GITHUB_STEP_SUMMARY": str(path)})
    data = path.read_bytes()
    assert len(data) <= 1 << 20
    assert data.endswith(b"(cut: the whole report is in the report directory)\n")
    path.write_bytes(b"x" * (1 << 20))
    assert append_summary(hostile(), {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.stat().st_size == 1 << 20


def test_only_a_step_of_github_is_one():
    assert runs_there({"GITHUB_ACTIONS": "true"})
    assert not runs_there({}) and not runs_there({"GITHUB_ACTIONS": "false"})


@pytest.mark.parametrize(
    ("tree", "path"),
    [("vendor/x", "vendor/x/a.py"), (".", "a.py"), ("{base}/sub", "sub/a.py"), ("/else/where", "/else/where/a.py")],
)
def test_paths_are_those_of_the_repository(tmp_path, tree, path):
    subject = {"tree": tree.format(base=tmp_path)}
    assert repository_path(Report("gate", subject), Location("a.py"), base=tmp_path) == path


def test_code_quality_lists_what_has_a_place_and_is_not_known():
    found = json.loads(to_codequality(report(ERROR, ERROR, WARNING, NOTE, replace(NOTE, known=True))))
    assert [
        (f["check_name"], f["severity"], f["location"]["path"], f["location"]["lines"]["begin"]) for f in found
    ] == [
        ("CF901", "critical", "vendor/x/model/a.py", 3),
        ("CF901", "critical", "vendor/x/model/a.py", 3),
        ("CF603", "info", "vendor/x/b.py", 9),
    ]
    assert len({f["fingerprint"] for f in found}) == 3
    assert json.loads(to_codequality(hostile()))[0]["location"]["path"].endswith(HOSTILE)


def test_a_path_that_no_file_can_have_stays_as_it_is(tmp_path):
    report = Report("gate", {"tree": "/tree"})
    assert repository_path(report, Location("a\0.py"), base=tmp_path) == "/tree/a\0.py"
