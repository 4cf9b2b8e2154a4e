"""The pair in the repository: a real draft on a real target, through the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from compatfix import api
from compatfix.gating import ValidationOptions
from compatfix.model import Report
from compatfix.validate.prompt_file import read_prompts

ROOT = Path(__file__).parents[2]
PAIR = ROOT / "examples" / "pair"


@pytest.fixture(scope="module")
def report() -> Report:
    texts = read_prompts(str(PAIR / "prompts.jsonl"))[:6]
    options = ValidationOptions(on="weights", prompts=2, tokens=24, budgets=(16,), texts=texts)
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
