"""The pair in the repository: a real draft on a real target, through the gate."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compatfix import api
from compatfix.attest.fingerprint import Request, Used
from compatfix.attest.travelling import leave
from compatfix.model import Report
from compatfix.report.markdown import to_markdown
from compatfix.rewrites.writing import patch_copy
from compatfix.validate.options import ValidationOptions
from compatfix.validate.prompt_file import read_prompts

ROOT = Path(__file__).parents[2]
PAIR = ROOT / "examples" / "pair"
TREE = ROOT / "vendor" / "ddtree_ref"
TARGET, DRAFT = str(PAIR / "target"), str(PAIR / "draft")

# What a user's own script does with a patched tree.
SCRIPT = f"""
import sys
import torch
from transformers import AutoModelForCausalLM
from dflash import dflash_generate
from model import DFlashDraftModel

dtype = getattr(torch, sys.argv[1])
target = AutoModelForCausalLM.from_pretrained({TARGET!r}, dtype=dtype).eval()
draft = DFlashDraftModel.from_pretrained({DRAFT!r}, dtype=dtype).eval()
ids = torch.arange(10, 22)[None]
more = {{"mask_token_id": draft.mask_token_id, "block_size": draft.block_size, "stop_token_ids": []}}
dflash_generate(draft, target=target, input_ids=ids, max_new_tokens=8, **more)
"""


@pytest.fixture(scope="module")
def used() -> Used:
    return Used()


@pytest.fixture(scope="module")
def report(used: Used) -> Report:
    texts = read_prompts(str(PAIR / "prompts.jsonl"))[:4]
    options = ValidationOptions(on="weights", prompts=1, tokens=20, budgets=(16,), texts=texts, repetitions=1)
    return api.gate(TREE, TARGET, draft=DRAFT, options=options, patching="copy", ladder=False, used=used)


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


def test_patched_code_says_at_its_start_whether_it_is_what_was_judged(
    report: Report, used: Used, tmp_path: Path
) -> None:
    request = Request(TREE, TARGET, DRAFT, tmp_path, {"command": "gate", "on": "weights", "patch": "copy"})
    # Few prompts leave scope code undecided, and a finding says so; here only the weights are asked for.
    green = replace(api.settle(report, ("weights",)), findings=())
    assert leave(green, request, used, tmp_path) is None
    patched = tmp_path / "patched"
    patch_copy(TREE, patched)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    said = {}
    for dtype in ("bfloat16", "float32"):
        environment = {**os.environ, "PYTHONPATH": str(patched), "COMPATFIX_VERDICT": str(tmp_path / "attest.json")}
        environment.pop("COMPATFIX_ATTEST", None)
        run = subprocess.run([sys.executable, script, dtype], capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr
        (said[dtype],) = (line for line in run.stderr.splitlines() if line.startswith("compatfix: "))
    assert said["bfloat16"].startswith("compatfix: as judged ")
    assert "weights passed" in said["bfloat16"].replace("draft, weights", "weights")
    assert said["float32"].startswith("compatfix: not as judged ")
    assert said["float32"].endswith("draft dtype is float32, judged bfloat16; target dtype is float32, judged bfloat16")
