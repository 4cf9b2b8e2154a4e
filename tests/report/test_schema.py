"""report.json against its published schema, and reading it back."""

import json
import math
from dataclasses import fields, replace

import pytest
from jsonschema import Draft202012Validator

from compatfix.errors import UsageError
from compatfix.model import Answer, Report
from compatfix.report.files import write_report
from compatfix.report.reading import load_report
from compatfix.report.schema import report_schema

from .made import EXAMPLE, ROOT, example, of_timing, of_weights, with_cache

PUBLISHED = ROOT / "docs" / "report-v1.schema.json"


@pytest.fixture(scope="module")
def validator():
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(published)
    return Draft202012Validator(published)


def test_the_published_schema_is_that_of_the_dataclasses():
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == report_schema()
    assert set(report_schema()["properties"]) == {field.name for field in fields(Report)}


def test_the_example_fits_the_schema(validator):
    assert [error.message for error in validator.iter_errors(json.loads(EXAMPLE.read_text(encoding="utf-8")))] == []


def test_what_is_written_fits_the_schema(validator, tmp_path):
    infinite = replace(example().findings[0], details={"margin": float("inf")})
    report = with_cache(replace(example(), findings=(infinite,), required=("code",)))
    written = json.loads((write_report(report, tmp_path) / "report.json").read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(written)] == []


def test_a_timing_fits_the_schema_and_its_estimate_cannot_lose_its_mark(validator, tmp_path):
    written = json.loads((write_report(of_timing(), tmp_path) / "report.json").read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(written)] == []
    assert len(written["sections"]["measured"]["runs"]["all"]) == 2 * 12 * 5
    written["sections"]["measured"]["estimate"]["estimate"] = False
    assert list(validator.iter_errors(written))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda r: r["findings"][0].update(level="fatal"), "$.findings[0].level"),
        (lambda r: r["verdict"]["scopes"][0].update(status="fine"), "$.verdict"),
        (lambda r: r["verdict"]["scopes"][0].pop("reason"), "$.verdict"),
        (lambda r: r["sections"]["benchmark"]["rows"][1].update(accepted_length="3"), "$.sections.benchmark"),
        (lambda r: r["sections"]["losslessness"]["modes"][0].update(run=-1), "$.sections.losslessness"),
        (lambda r: r["sections"]["bf16"]["modes"][1]["differences"][0].update(kind="luck"), "$.sections.bf16"),
        (lambda r: r.update(schema=2), "$.schema"),
        (lambda r: r.pop("schema"), "$"),
    ],
)
def test_what_does_not_fit_is_found(validator, change, path):
    report = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    change(report)
    errors = list(validator.iter_errors(report))
    assert errors and all(error.json_path.startswith(path) for error in errors)


ENTRY = {
    "kind": "tree",
    "entry": "run.loop:branching",
    "named": True,
    "roles": {"target": "big"},
    "literals": {"log": None},
    "defaults": [],
    "result": {"field": None, "only_new": False},
}


def test_how_entry_points_were_called_has_a_shape(validator):
    report = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    report["sections"]["validation"]["entry_points"] = [dict(ENTRY)]
    assert not list(validator.iter_errors(report))
    for wrong in ({"kind": "fork"}, {"entry": "branching"}, {"roles": {"target": 1}}, {"result": {"field": "x"}}):
        report["sections"]["validation"]["entry_points"] = [ENTRY | wrong]
        assert list(validator.iter_errors(report)), wrong


def test_new_fields_need_no_new_version(validator):
    report = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    report["news"] = report["findings"][0]["news"] = report["sections"]["news"] = {"a": 1}
    assert not list(validator.iter_errors(report))


def test_a_report_is_found_by_file_by_run_and_by_the_newest_run(tmp_path):
    write_report(replace(of_weights(), subject={"tree": "old"}), tmp_path)
    run = write_report(of_weights(), tmp_path)
    assert load_report(run / "report.json") == load_report(run) == load_report(tmp_path) == of_weights()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("", "is not JSON"),
        ("[]", "is not a report of compatfix"),
        ("{}", "has no schema version"),
        ('{"schema": 99}', "has schema version 99, this compatfix knows 1"),
        ('{"schema": 1, "kind": "gate"}', "is not a report of schema version 1"),
        (
            '{"schema": 1, "kind": "gate", "subject": {}, "verdict": {"scopes": 3}}',
            "is not a report of schema version 1",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, content, words):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=words) as raised:
        load_report(path)
    assert "\n" not in str(raised.value)


def test_a_directory_without_a_report_says_what_to_give(tmp_path):
    with pytest.raises(UsageError, match=r"no report.json or latest.txt in .* \(give"):
        load_report(tmp_path)
    (tmp_path / "latest.txt").write_text("gone\n")
    with pytest.raises(UsageError, match="names 'gone', which holds no report"):
        load_report(tmp_path)


def test_a_number_that_is_none_comes_back_as_none(tmp_path):
    answer = Answer("p", "How far?", "far", False, {"gap": math.nan, "size": math.inf, "noise": 0.5})
    run = write_report(Report("inspect", {}, answers=(answer,)), tmp_path)
    assert '"gap": null' in (run / "report.json").read_text()
    numbers = load_report(run).answers[0].numbers
    assert math.isnan(numbers["gap"]) and math.isnan(numbers["size"]) and numbers["noise"] == 0.5
