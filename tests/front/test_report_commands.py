"""`compatfix report`, and what validate and gate do with their reports: --fail-on, --baseline, GitHub."""

import json
import shutil

import pytest

from .conftest import ROOT, TARGETS

EXAMPLE = ROOT / "reports" / "example"
MODELS = ("--target", TARGETS / "qwen3-8b", "--draft", TARGETS / "qwen3-8b-dflash")


@pytest.fixture
def example(tmp_path):
    """A copy of the example report that may be changed."""
    copy = tmp_path / "example"
    shutil.copytree(EXAMPLE, copy)

    def change(edit):
        path = copy / "report.json"
        report = json.loads(path.read_text())
        edit(report)
        path.write_text(json.dumps(report))
        return copy

    return change


def test_compare_of_two_runs(compatfix, example):
    same = compatfix("report", "compare", EXAMPLE, EXAMPLE / "report.json")
    assert (same.code, same.err) == (0, "")
    assert same.out.splitlines()[-1] == "not worse"
    worse = example(lambda report: report["verdict"]["scopes"][0].update(status="failed"))
    run = compatfix("report", "compare", EXAMPLE, worse, "--format", "md")
    assert (run.code, run.err) == (1, "worse: scope code: passed, now failed\n")
    assert "| code | passed | failed | worse |" in run.out
    assert compatfix("report", "compare", worse, EXAMPLE).code == 0
    plain = json.loads(compatfix("report", "compare", EXAMPLE, worse, "--format", "json").out)
    assert plain["worse"] == ["scope code: passed, now failed"]


def test_a_report_of_the_future_is_refused_with_one_line(compatfix, example):
    run = compatfix("report", "compare", EXAMPLE, example(lambda report: report.update(schema=2)))
    assert run.code == 2 and run.out == ""
    assert run.err.startswith("error: ") and "has schema version 2, this compatfix knows 1" in run.err
    assert run.err.count("\n") == 1


def test_schema_is_printed_as_published(compatfix):
    published = (ROOT / "docs" / "report-v1.schema.json").read_text()
    assert json.loads(compatfix("report", "schema").out) == json.loads(published)


def test_pages_are_written_again_from_the_json(compatfix, example):
    run = example(lambda report: report["findings"][0].update(message="a new message"))
    before = (run / "report.json").read_bytes()
    done = compatfix("report", "render", run)
    assert done.code == 0
    names = {"report.md", "report.html", "junit.xml", "codequality.json"}
    assert {line.rpartition("/")[2] for line in done.out.splitlines()} == names
    assert (run / "report.json").read_bytes() == before
    assert "a new message" in (run / "report.html").read_text() and "a new message" in (run / "report.md").read_text()


def test_the_example_is_what_this_version_writes(compatfix, example):
    run = example(lambda report: None)
    shutil.copy(EXAMPLE / "report.json", run / "report.json")
    compatfix("report", "render", run)
    for path in EXAMPLE.iterdir():
        assert (run / path.name).read_text() == path.read_text(), f"compatfix report render {EXAMPLE}"


def test_a_baseline_makes_findings_known_and_turns_no_scope_green(compatfix, pending):
    first = compatfix("gate", pending, *MODELS)
    assert first.code == 1
    assert "gate: red (scope code is failed, 1 error)" in first.out
    written = compatfix("report", "baseline", "reports")
    assert written.code == 0
    known = compatfix.directory / "known.json"
    known.write_text(written.out)
    second = compatfix("gate", pending, *MODELS, "--baseline", known)
    assert second.code == 1
    assert "CF905 error (known)" in second.out
    count = len(json.loads(written.out)["entries"])
    assert count >= 1 and "gate: red (scope code is failed; " in second.out


def test_a_bad_baseline_is_told_before_anything_is_measured(compatfix, pending):
    run = compatfix("gate", pending, *MODELS, "--baseline", "nowhere.json")
    assert (run.code, run.out) == (2, "")
    assert run.err == "error: cannot read the baseline nowhere.json: No such file or directory\n"
    assert not (compatfix.directory / "reports").exists()


def test_github_format_prints_commands_only(compatfix, pending):
    run = compatfix("gate", pending, *MODELS, "--format", "github", "--fail-on", "note")
    assert run.code == 1
    lines = run.out.splitlines()
    assert lines[0].startswith("::error title=scope code%3A failed::")
    assert all(line.startswith("::error ") for line in lines)
    assert "gate: red (scope code is failed, 1 error" in run.err


def test_a_step_of_github_is_told_without_being_asked(compatfix, pending, monkeypatch):
    summary = compatfix.directory / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run = compatfix("gate", pending, *MODELS)
    assert "\n::error title=CF905 error::" in run.out
    assert summary.read_text().startswith("# compatfix gate\n")
    quiet = compatfix("gate", pending, *MODELS, "--format", "json")
    assert json.loads(quiet.out)["kind"] == "gate"
    assert "::error title=CF905 error::" in quiet.err


def test_every_form_is_in_the_report_directory(compatfix, pending):
    compatfix("gate", pending, *MODELS)
    reports = compatfix.directory / "reports"
    run = reports / (reports / "latest.txt").read_text().strip()
    assert sorted(path.name for path in run.iterdir()) == [
        "codequality.json",
        "junit.xml",
        "report.html",
        "report.json",
        "report.md",
    ]
    assert json.loads((run / "report.json").read_text())["required"] == ["code"]


def test_places_exempt_by_a_comment_stand_in_the_verdict(compatfix, pending):
    with (pending / "loop.py").open("a") as file:
        file.write("    kv.crop(5)  # compatfix: ignore[CF203]\n")
    run = compatfix("gate", pending, *MODELS)
    assert "[exempt by a comment: CF203 (1)]" in " ".join(run.out.split())
    assert "exempt by a comment in the code: CF203 (1)" in compatfix("patch", pending, "--check").out


@pytest.mark.parametrize(
    "edit",
    [
        lambda report: report.update(verdict=None),
        lambda report: report["verdict"].update(scopes=[]),
        lambda report: report["verdict"]["scopes"].pop(0),
        lambda report: report.update(kind="inspect", verdict=None),
    ],
    ids=["no verdict", "no scopes", "not scope code", "an inspection"],
)
def test_a_scope_that_passed_and_is_gone_is_worse(compatfix, example, edit):
    run = compatfix("report", "compare", EXAMPLE, example(edit))
    assert (run.code, run.err) == (1, "")
    assert run.out.splitlines()[-1] == "worse: scope code: passed, now unmeasured"


DAMAGE = {
    "a benchmark without rows": lambda report: report["sections"].update(benchmark={"label": "x"}),
    "a mode that is a number": lambda report: report["sections"]["benchmark"]["rows"][0].update(mode=7),
    "modes that are a number": lambda report: report["sections"]["losslessness"].update(modes=5),
    "faults that are a number": lambda report: report["sections"].update(faults=7),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_report_is_one_line(compatfix, example, damage):
    run = example(DAMAGE[damage])
    refused = 0
    for args in (("compare", EXAMPLE, run), ("summary", run), ("render", run)):
        done = compatfix("report", *args)
        assert "internal error" not in done.err and "Traceback" not in done.err, (args, done.err)
        if done.code == 2:
            assert f"{run} does not hold what a report of its version does (" in done.err
            assert done.err.startswith("error: ") and done.err.count("\n") == 1
            refused += 1
    # What the summary does not read cannot trip it; the pages read everything.
    assert refused >= 1 and done.code == 2


def test_a_report_without_scopes_says_so(compatfix, example):
    done = compatfix("report", "summary", example(lambda report: report["verdict"].update(scopes=[])))
    assert done.code == 0
    assert "the verdict says nothing of it" in " ".join(done.out.split())


def test_what_is_nested_too_deeply_is_one_line(compatfix, tmp_path):
    deep = tmp_path / "report.json"
    deep.write_text("[" * 200_000)
    assert compatfix("report", "summary", deep).err == f"error: {deep} is nested too deeply to be a report\n"
    gate = compatfix("gate", ROOT / "vendor" / "ddtree_ref", *MODELS, "--baseline", deep)
    assert (gate.code, gate.err) == (2, f"error: the baseline {deep} is nested too deeply\n")


def test_a_report_cannot_command_a_terminal(compatfix, example):
    run = example(lambda report: report["subject"].update(tree="a\x1b[2Jb\u202ec"))
    assert "gate of a\\x1b[2Jb\\u202ec against" in compatfix("report", "summary", run).out
