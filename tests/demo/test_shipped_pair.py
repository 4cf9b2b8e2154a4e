"""The pair in the repository: a real draft on a real target, through the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from compatfix import api
from compatfix.gating import ValidationOptions
from compatfix.model import Report
from compatfix.report.markdown import to_markdown
from compatfix.validate.prompt_file import read_prompts

ROOT = Path(__file__).parents[2]
PAIR = ROOT / "examples" / "pair"


@pytest.fixture(scope="module")
def report() -> Report:
    texts = read_prompts(str(PAIR / "prompts.jsonl"))[:4]
    options = ValidationOptions(on="weights", prompts=1, tokens=20, budgets=(16,), texts=texts, repetitions=1)
    target, draft = str(PAIR / "target"), str(PAIR / "draft")
    return api.gate(ROOT / "vendor" / "ddtree_ref", target, draft=draft, options=options, patching="copy", ladder=False)


def test_it_is_complete_and_right(report: Report) -> None:
    assert report.verdict is not None
    assert report.verdict.of("weights").status == "passed", report.verdict.of("weights").reason
    assert report.verdict.of("draft").status == "passed", report.verdict.of("draft").reason


def test_more_than_one_drafted_token_is_accepted_and_a_tree_accepts_more(report: Report) -> None:
    accepted = {row["mode"]: row["accepted_length"] for row in report.sections["weights"]["modes"]}
    assert accepted["chain"] > 2.0
    assert accepted["tree-16"] > accepted["chain"]
    assert report.sections["weights"]["text_prompts"] is True


def test_its_ratios_are_measured_and_its_speed_is_not_claimed(report: Report) -> None:
    section = report.sections["measured"]
    assert [row["mode"] for row in section["rows"]] == ["plain", "plain again", "chain", "tree-16", "library"]
    rows = {row["mode"]: row for row in section["rows"]}
    assert rows["plain"]["speed_up"] == 1.0
    assert rows["tree-16"]["accepted_length"] > rows["chain"]["accepted_length"] > 2.0
    assert rows["chain"]["reads_per_round"] > 0
    assert rows["chain"]["draft_forwards_per_token"] < 1
    assert report.verdict is not None
    assert report.verdict.of("speed").status == "unmeasured"
    told = [statement for statement in report.statements if statement.topic == "speed"]
    assert told[0].text.startswith("recommended: ")
    assert (told[-1].evidence, told[-1].value["estimate"]) == ("assumed", True)
    assert "tokens/s" not in to_markdown(report)
