"""Comparing two reports, and findings that are known."""

import json
from dataclasses import replace

import pytest

from compatfix.api import conclusion, green, settle
from compatfix.errors import UsageError
from compatfix.model import Finding, Location, Report, Verdict
from compatfix.report.baseline import baseline_text, load_baseline, with_baseline
from compatfix.report.compare import compare
from compatfix.report.comparison import comparison_text
from compatfix.report.fingerprints import fingerprint

from .made import HOSTILE, example, hostile, of_timing, verdict


def finding(code="CF603", level="error", message="buffers at 3 places", path="a.py", line=3, **details):
    return Finding(code, level, "read", message, Location(path, line, 1), details=details)


# -- the same finding


def test_a_finding_is_the_same_wherever_its_line_has_moved_and_whatever_its_numbers_are():
    first = finding(line=3, message="token 7 is 3.5e-05 off", source="kv.crop(start)")
    moved = finding(line=90, message="token 12 is 0.25 off", source="    kv.crop(start)")
    assert fingerprint(first) == fingerprint(moved)


@pytest.mark.parametrize(
    "other",
    [
        finding(code="CF203"),
        finding(path="b.py"),
        finding(message="buffers elsewhere"),
        finding(source="kv.crop(other)"),
        finding(place={"source": "x"}),
    ],
)
def test_another_code_path_message_or_line_is_another_finding(other):
    assert fingerprint(other) != fingerprint(finding())


# -- baselines


def baseline_of(report, tmp_path):
    path = tmp_path / "known.json"
    path.write_text(baseline_text(report), encoding="utf-8", errors="backslashreplace")
    return load_baseline(path)


def test_known_findings_do_not_count_and_are_shown(tmp_path):
    report = Report("gate", {}, findings=(finding(),), verdict=verdict(code="passed"))
    assert not green(report, ("code",))
    known = with_baseline(report, baseline_of(report, tmp_path), "known.json")
    assert green(known, ("code",))
    assert known.findings == (replace(finding(), known=True),)
    assert conclusion(known, ("code",)) == "gate: green (code passed; 1 known finding set aside)"
    assert known.sections["baseline"] == {"file": "known.json", "known": 1, "gone": []}


@pytest.mark.parametrize("status", ["failed", "undecided", "unmeasured"])
def test_no_baseline_turns_a_scope_green(status, tmp_path):
    report = Report("gate", {}, findings=(finding(),), verdict=verdict(code=status))
    known = settle(report, ("code",), "error", (baseline_of(report, tmp_path), "b"))
    assert known.verdict == report.verdict
    assert not green(known, ("code",))


def test_one_more_of_the_same_is_new(tmp_path):
    report = Report("gate", {}, findings=(finding(),), verdict=verdict(code="passed"))
    more = replace(report, findings=(finding(line=3), finding(line=30)))
    known = with_baseline(more, baseline_of(report, tmp_path), "b")
    assert [f.known for f in known.findings] == [True, False]
    assert not green(known, ("code",))


def test_entries_that_no_longer_occur_are_told(tmp_path, capsys):
    from compatfix.report import render

    report = Report("gate", {}, findings=(finding(), finding(line=9), finding(code="CF203")), verdict=verdict())
    fewer = replace(report, findings=(finding(line=50),))
    known = with_baseline(fewer, baseline_of(report, tmp_path), "known.json")
    gone = known.sections["baseline"]["gone"]
    assert [(entry["code"], entry["count"]) for entry in gone] == [("CF203", 1), ("CF603", 1)]
    render(known, "text")
    text = capsys.readouterr().out
    assert "Known findings that no longer occur" in text and "known.json" in text
    assert "CF603 error (known) a.py:50:1" in text


def test_a_baseline_of_hostile_findings_knows_them(tmp_path):
    known = with_baseline(hostile(), baseline_of(hostile(), tmp_path), HOSTILE)
    assert all(f.known for f in known.findings)


@pytest.mark.parametrize("fail_on", ["warning", "note"])
def test_graver_levels_count_where_asked(fail_on):
    report = Report("gate", {}, findings=(finding(level="warning"),), verdict=verdict(code="passed"))
    assert green(settle(report, ("code",)), ("code",))
    asked = settle(report, ("code",), fail_on)
    assert conclusion(asked, ("code",)) == "gate: red (1 warning)"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read the baseline"),
        ("x", "is not JSON"),
        ("{}", "is not a baseline"),
        ('{"baseline": 9, "entries": []}', "has version 9, this compatfix knows 1"),
        ('{"baseline": 1, "entries": 3}', "is not a baseline of version 1"),
    ],
)
def test_a_baseline_that_cannot_be_read_is_one_line(tmp_path, content, words):
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=words) as raised:
        load_baseline(path)
    assert "\n" not in str(raised.value)


# -- comparing


def gate(findings=(), **statuses):
    return Report("gate", {"target": "t"}, findings=tuple(findings), verdict=verdict(**statuses))


def test_a_report_is_not_worse_than_itself():
    found = compare(example(), example())
    assert not (found.subject or found.incomparable or found.gone or found.new or found.worse)
    assert {change.note for change in found.scopes} == {""}
    assert found.numbers and all(number.difference == 0 for number in found.numbers)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (gate(code="passed"), gate(code="failed"), ["scope code: passed, now failed"]),
        (gate(code="passed"), gate(code="unmeasured"), ["scope code: passed, now unmeasured"]),
        (gate(code="failed"), gate(code="passed"), []),
        (gate(code="undecided"), gate(code="failed"), []),
        (gate(), gate([finding()]), ["new error CF603 a.py:3:1: buffers at 3 places"]),
        (gate([finding(line=1)]), gate([finding(line=70)]), []),
        (gate([finding()]), gate([finding(), finding()]), ["new error CF603 a.py:3:1: buffers at 3 places"]),
        (gate(), gate([finding(level="warning")]), []),
        (gate(), gate([replace(finding(), known=True)]), []),
        (gate([finding()]), gate(), []),
    ],
)
def test_worse_is_a_scope_that_no_longer_passes_or_a_new_error(before, after, worse):
    assert list(compare(before, after).worse) == worse


def changed(**settings):
    report = example()
    return replace(report, sections={**report.sections, "validation": {**report.sections["validation"], **settings}})


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (changed(seed=7), "numbers are not compared: other seed"),
        (changed(prompts=8), "numbers are not compared: other prompts"),
        (
            replace(example(), subject={**example().subject, "target": "other"}),
            "numbers are not compared: other target",
        ),
    ],
)
def test_numbers_of_another_experiment_are_not_compared(after, words):
    found = compare(example(), after)
    assert found.incomparable == (words,)
    assert found.numbers == ()
    assert len(found.subject) == 1


def test_modes_that_only_one_run_has_are_told():
    report = example()
    benchmark = report.sections["benchmark"]
    rows = [{**row, "mode": row["mode"].replace("tree-64", "tree-16")} for row in benchmark["rows"]]
    rows[1] = {**rows[1], "accepted_length": rows[1]["accepted_length"] + 0.5}
    after = replace(
        report,
        sections={
            **report.sections,
            "benchmark": {**benchmark, "rows": rows},
            "validation": {**report.sections["validation"], "budgets": [32, 16]},
        },
    )
    found = compare(report, after)
    assert found.incomparable == ("measured only before: tree-64", "measured only after: tree-16")
    assert [(c.name, c.before, c.after) for c in found.subject] == [("budgets", "32, 64", "32, 16")]
    numbers = {number.name: number for number in found.numbers}
    assert numbers["accepted length, chain (oracle draft)"].difference == pytest.approx(0.5)
    assert numbers["accepted length, tree-64 (oracle draft)"].after is None
    assert numbers["accepted length, tree-16 (oracle draft)"].before is None
    assert found.worse == ()


def test_timed_ratios_are_compared_with_noise_in_mind():
    before, alike, faster = (of_timing(), of_timing(seed=8), of_timing(chain=1.8))
    numbers = {n.name: n for n in compare(before, alike).numbers}
    assert numbers["speed-up, chain (timed)"].noise
    assert "speed-up, plain (timed)" not in numbers
    assert ", noise" in comparison_text(compare(before, alike), "text")
    numbers = {n.name: n for n in compare(before, faster).numbers}
    assert not numbers["speed-up, chain (timed)"].noise
    assert numbers["speed-up, chain (timed)"].difference == pytest.approx(0.3, abs=0.05)
    assert numbers["speed-up, tree-16 (timed)"].noise
    assert compare(before, faster).worse == ()


def test_ratios_of_another_device_are_not_compared():
    before, after = of_timing(), of_timing(device_kind="cuda", parameters=10**9)
    assert not [n for n in compare(before, after).numbers if "timed" in n.name]


def test_a_report_without_a_verdict_is_told():
    found = compare(Report("inspect", {}), gate())
    assert found.incomparable[0] == "verdicts are not compared: the first report (inspect) gives none"
    assert found.scopes == ()


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_every_form_tells_what_came_went_and_changed(form):
    before = gate([finding(code="CF101")], code="passed")
    after = gate([finding(code="CF203")], code="failed")
    text = comparison_text(compare(before, after), form)
    assert "CF101" in text and "CF203" in text
    if form == "json":
        plain = json.loads(text)
        assert plain["worse"][0] == "scope code: passed, now failed"
        assert [f["code"] for f in plain["new"]] == ["CF203"]
    elif form == "md":
        assert "| code | passed | failed | worse |" in text
    else:
        assert "code     passed      failed      worse" in text.splitlines()
        assert "new  CF203 error a.py:3:1  buffers at 3 places" in text.splitlines()
        assert "gone CF101 error a.py:3:1  buffers at 3 places" in text.splitlines()


def test_hostile_reports_compare():
    other = replace(hostile(), verdict=Verdict(example().verdict.scopes), findings=())
    for form in ("text", "md", "json"):
        comparison_text(compare(other, hostile()), form)
    assert "\x1b" not in comparison_text(compare(other, hostile()), "text")


def test_counts_of_another_number_of_texts_are_not_compared():
    report = example()
    rows = [{**row, "run": 6, "same": 6, "differences": []} for row in report.sections["bf16"]["modes"]]
    after = replace(report, sections={**report.sections, "bf16": {**report.sections["bf16"], "modes": rows}})
    numbers = {n.name: n for n in compare(report, after).numbers if "texts equal" in n.name and "bf16" in n.name}
    assert numbers["texts equal of 4, chain (bf16)"].after is None
    assert numbers["texts equal of 6, chain (bf16)"].before is None
    assert all(number.difference is None for number in numbers.values())
