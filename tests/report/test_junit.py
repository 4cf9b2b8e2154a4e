"""junit.xml: valid for any text, and red exactly where the report is."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from compatfix.api import green
from compatfix.model import Finding, Location, Report
from compatfix.report.junit import to_junit

from .made import example, hostile, of_weights, verdict


def suites(report):
    root = ET.fromstring(to_junit(report).encode("utf-8"))
    assert root.tag == "testsuites"
    return {suite.attrib["name"]: suite for suite in root}


def outcomes(suite):
    """Name and outcome of every case."""
    return {case.attrib["name"]: (case[0].tag if len(case) else "passed") for case in suite}


def test_the_scopes_of_a_green_run():
    scopes = suites(example())["scopes"]
    assert outcomes(scopes) == {
        "code": "system-out",
        **dict.fromkeys(("kernels", "weights", "draft", "speed"), "skipped"),
    }
    kernels = next(case for case in scopes if case.attrib["name"] == "kernels")
    assert kernels[0].attrib["message"] == (
        "unmeasured: attention kernels and fast paths of the machine that will run it → gate --on slice, on the "
        "machine that will run it"
    )


@pytest.mark.parametrize(
    ("statuses", "required", "expected"),
    [
        ({"code": "failed"}, ("code",), {"code": "failure"}),
        ({"code": "undecided"}, ("code",), {"code": "failure"}),
        ({"code": "passed"}, ("code", "weights"), {"weights": "failure", "draft": "skipped"}),
        ({"code": "passed", "weights": "undecided"}, ("code",), {"weights": "skipped"}),
        ({"code": "passed", "weights": "failed"}, ("code",), {"code": "system-out", "weights": "skipped"}),
    ],
)
def test_what_had_to_pass_and_did_not_is_a_failure(statuses, required, expected):
    found = outcomes(suites(Report("gate", {}, verdict=verdict(**statuses), required=required))["scopes"])
    assert {name: found[name] for name in expected} == expected


def test_a_scope_that_failed_and_had_not_to_pass_says_so_and_fails_nothing():
    report = Report("gate", {}, verdict=verdict(code="passed", speed="failed"), required=("code",))
    assert green(report, ("code",))
    speed = suites(report)["scopes"][-1]
    assert speed[0].tag == "skipped" and speed[0].attrib["message"] == "failed, not required: why speed"


def test_every_measured_check_is_a_case():
    checks = outcomes(suites(example())["checks"])
    assert checks["tree-64, oracle: texts equal plain decoding"] == "system-out"
    assert checks["planted fault sibling-leaked is caught"] == "system-out"
    assert checks["planted fault window-mask-missing is caught"] == "skipped"
    assert checks["chain on bf16: differing texts are rounding"] == "system-out"
    sections = example().sections
    modes = len(sections["losslessness"]["modes"]) + len(sections["bf16"]["modes"])
    assert len(checks) == modes + len(sections["faults"])


def test_faults_that_were_not_seen_and_texts_that_differ_fail():
    report = example()
    sections = dict(report.sections)
    sections["faults"] = [{**sections["faults"][0], "caught": False}]
    first, second, third = sections["losslessness"]["modes"][:3]
    error = {"type": "ValueError", "message": "bad"}
    tallies = [
        {**first, "same": first["same"] - 2},
        {**second, "same": 3, "run": 3},
        {**third, "same": 3, "run": 4, "error": error},
    ]
    sections["losslessness"] = {**sections["losslessness"], "modes": tallies}
    assert list(outcomes(suites(replace(report, sections=sections))["checks"]).values())[:4] == [
        "failure",
        "skipped",
        "error",
        "failure",
    ]


def test_corruption_on_weights_fails():
    checks = outcomes(suites(of_weights())["checks"])
    assert checks == {
        "plain on weights: differing texts are rounding": "system-out",
        "chain on weights: differing texts are rounding": "failure",
        "tree-16 on weights: differing texts are rounding": "failure",
    }


ERROR = Finding("CF901", "error", "measured", "wrong", Location("a.py", 3, 1))
WARNING = Finding("CF002", "warning", "measured", "slow", fix="pip install x")


@pytest.mark.parametrize(
    ("findings", "fail_on", "expected"),
    [
        ((ERROR, WARNING), "error", ["failure", "system-out"]),
        ((ERROR, WARNING), "warning", ["failure", "failure"]),
        ((replace(ERROR, known=True), WARNING), "error", ["skipped", "system-out"]),
    ],
)
def test_findings_fail_where_they_keep_the_report_from_green(findings, fail_on, expected):
    report = Report("gate", {}, findings=findings, verdict=verdict(code="passed"), fail_on=fail_on)
    cases = outcomes(suites(report)["findings"])
    assert list(cases) == ["CF901 a.py:3:1: wrong", "CF002: slow"]
    assert list(cases.values()) == expected
    assert green(report, ("code",)) == ("failure" not in expected)


def test_counts_are_those_of_the_cases():
    for report in (example(), of_weights(), hostile()):
        root = ET.fromstring(to_junit(report).encode("utf-8"))
        for suite in [*root, root]:
            cases = list(suite.iter("testcase"))
            assert int(suite.attrib["tests"]) == len(cases) > 0
            for outcome, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
                assert int(suite.attrib[name]) == sum(len(case.findall(outcome)) for case in cases)


def test_hostile_text_stays_text():
    findings = suites(hostile())["findings"]
    shown = "<script>alert(\"1\")</script> & 'x' \\x1b[31m \\udc80 \\u202e ]]> \\ufeff \\x00 </title> `a` | b\nc % :: ,"
    assert shown in findings[0].attrib["name"]
    assert shown in findings[0][0].text
