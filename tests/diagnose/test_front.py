"""The report that a diagnosis makes, and the command around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from compatfix.cli import main
from compatfix.diagnose.front import causes, conclusion, exit_code, report_of
from compatfix.model import Report
from compatfix.report.files import texts_of
from compatfix.report.schema import report_schema

from .plant import PAIR, ROOT


def suspect(name: str, status: str, **more: Any) -> dict[str, Any]:
    plain = {"name": name, "question": "Is it?", "code": "CF951", "status": status, "reason": "2.00 becomes 3.00"}
    numbers = {"before": 2.0, "after": 3.0, "gain": 1.0, "chance": 0.01, "prompts": 6, "level": 1}
    return {**plain, "evidence": "measured", "step": "edit it", "toggle": "other", "mode": "chain", **numbers, **more}


def section(*suspects: dict[str, Any], wrong: int = 0, levels: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    lengths = {"baseline": {"chain": 2.0}, "repaired": {"chain": 3.0}, "floor": {"chain": 1.0}}
    texts = {"wrong_texts": {"chain": wrong}, "repaired_wrong_texts": {"chain": 0}}
    size = {"modes": ["chain"], "prompts": 6, "tokens": 16, "runs": 100, "block": 8}
    return {**size, **lengths, **texts, "levels": list(levels), "suspects": list(suspects), "left_out": []}


def made(found: dict[str, Any]) -> Report:
    return report_of({"target": "t", "draft": "d"}, found)


def test_a_cause_is_a_finding_with_its_step_and_exit_code_1() -> None:
    found = section(suspect("mask token", "cause"), suspect("rope", "contributes"), suspect("slot 0", "not the cause"))
    report = made(found)
    assert [(f.code, f.level, f.evidence, f.fix) for f in report.findings] == [
        ("CF951", "error", "measured", "edit it"),
        ("CF951", "note", "measured", "edit it"),
    ]
    assert (causes(report), exit_code(report)) == (("mask token",), 1)
    assert conclusion(report) == "diagnose: mask token"


def test_a_healthy_pair_is_exit_code_0() -> None:
    report = made(section(suspect("mask token", "not the cause"), suspect("rope", "not applicable")))
    assert exit_code(report) == 0
    assert conclusion(report) == "diagnose: nothing raises acceptance; this is what the draft achieves here"


def test_what_contributes_is_not_called_nothing() -> None:
    report = made(section(suspect("mask token", "not the cause"), suspect("rope", "contributes")))
    assert exit_code(report) == 0
    assert conclusion(report) == "diagnose: no cause; rope contributes a little"


def test_what_was_not_measured_is_not_called_healthy() -> None:
    found = section(suspect("mask token", "not the cause"), suspect("dtype", "unmeasured"))
    report = made({**found, "left_out": ["slot 0"]})
    words = "diagnose: nothing that was measured raises acceptance; not measured: dtype, slot 0"
    assert conclusion(report) == words


def test_wrong_text_without_a_cause_is_never_healthy() -> None:
    report = made(section(suspect("rollback", "not the cause"), wrong=2))
    assert exit_code(report) == 1
    assert "run compatfix gate" in conclusion(report)
    assert "2 of 6 with chain" in next(s.text for s in report.statements if s.key == "wrong texts")


def test_nothing_measured_is_exit_code_2() -> None:
    report = Report("diagnose", {})
    assert exit_code(report) == 2


def test_every_form_of_the_report_names_the_cause_and_json_fits_the_schema() -> None:
    level = {"repair": "mask token", "toggle": "other", "accepted": {"chain": 3.0}}
    texts = texts_of(made(section(suspect("mask token", "cause"), levels=(level,))))
    for name in ("report.md", "report.html", "junit.xml"):
        assert "mask token: 2.00 becomes 3.00" in texts[name], name
    report = json.loads(texts["report.json"]) | {"version": "0", "started": "now"}
    validator = Draft202012Validator(report_schema())
    assert [error.message for error in validator.iter_errors(report)] == []
    report["sections"]["diagnosis"]["suspects"][0]["status"] = "perhaps"
    assert list(validator.iter_errors(report))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--draft", "nowhere"], "nowhere"),
        (["--draft", str(PAIR / "draft"), "--reference", "nowhere"], "no directory nowhere"),
        (["--draft", str(PAIR / "draft"), "--prompts", "3"], "--prompts"),
        (["--draft", str(PAIR / "draft"), "--prompt-file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_bad_input_is_told_in_a_line_and_exit_code_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    command = ["diagnose", str(ROOT / "vendor" / "ddtree_ref"), "--target", str(PAIR / "target"), *arguments]
    run = CliRunner().invoke(main, [*command, "--report-dir", str(tmp_path)])
    assert run.exit_code == 2
    assert said in run.stderr
    assert not list(tmp_path.iterdir())
