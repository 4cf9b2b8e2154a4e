"""The whole validation through a worker: scheduling, early ends, the ladder's choice of rules."""

from __future__ import annotations

import subprocess
import sys

import pytest

from compatfix.model import FileChange, Fix, Location, PatchPlan
from compatfix.process import Worker
from compatfix.validate.ladder import _rule_for, rung_of
from compatfix.validate.options import ValidateRequest
from compatfix.validate.plan import validate
from compatfix.validate.tally import add_lengths, histogram, new_tally, per_position
from tests.validate.conftest import TARGETS


@pytest.fixture(scope="module")
def worker():
    with Worker() as process:
        yield process


def request(tree, **changes) -> ValidateRequest:
    target, draft = str(TARGETS / "qwen3-8b"), str(TARGETS / "qwen3-8b-dflash")
    return ValidateRequest(tree=str(tree), target=target, draft=draft, prompts=8, tokens=24, budgets=(16,), **changes)


def test_a_right_tree_passes_scope_code_and_nothing_else(variant, worker):
    steps = []
    outcome = validate(worker, request(variant()), steps.append)
    assert [v.scope for v in outcome.scopes] == ["code", "kernels", "weights", "draft", "speed"]
    assert [v.status for v in outcome.scopes] == ["passed", *["unmeasured"] * 4], outcome.findings
    assert {"validation", "losslessness", "faults", "bf16", "benchmark"} <= set(outcome.sections)
    assert {row["mode"] for row in outcome.sections["benchmark"]["rows"]} == {"plain", "chain", "tree-16"}
    assert steps


def test_a_tree_that_raises_ends_early_with_the_place(variant, worker):
    tree = variant()
    source = (tree / "draft.py").read_text()
    (tree / "draft.py").write_text(source.replace("        cache.crop(-surplus)", "        cache.crop(length)"))
    outcome = validate(worker, request(tree))
    assert outcome.scopes[0].status == "failed"
    finding = next(f for f in outcome.findings if f.code == "CF910")
    assert finding.location.path == "draft.py"
    assert set(outcome.sections["validation"]["skipped"]) == {"situations", "bf16", "faults"}


def test_planning_does_not_import_torch():
    code = "import sys, compatfix.validate.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def fix(code: str, line: int, path: str = "dflash.py") -> Fix:
    return Fix(code, Location(path, line, 1), "", "")


PLAN = PatchPlan("/", (FileChange("dflash.py", b"", b"", (fix("CF601", 10), fix("CF202", 20), fix("CF201", 50))),))


@pytest.mark.parametrize(
    ("error", "chosen", "code"),
    [
        ({"type": "AssertionError", "message": "no CUDA", "place": {"file": "dflash.py", "line": 10}}, [], "CF601"),
        ({"type": "IndexError", "message": "list index out of range", "place": None}, [], "CF201"),
        ({"type": "RuntimeRefusal", "message": "cannot be rolled back", "place": None}, ["CF201"], "CF202"),
        ({"type": "KeyError", "message": "x", "place": {"file": "other.py", "line": 1}}, ["CF601"], "CF202"),
        ({"type": "KeyError", "message": "x", "place": None}, ["CF601", "CF202", "CF201"], None),
    ],
)  # fmt: skip
def test_the_next_rule_is_the_one_that_the_exception_calls_for(error, chosen, code):
    assert _rule_for(error, PLAN, chosen) == code


def test_a_rung_that_runs_tells_accepted_lengths():
    tally = new_tally("chain", "oracle", 2, 24)
    tally.update(run=2, same=0)
    add_lengths(tally, [1, 1, 2])
    rung = rung_of("plausible", ("CF201",), [tally])
    assert rung.status == "wrong"
    assert rung.message == "runs; 0 of 2 texts are those of plain decoding; accepted length (oracle draft): chain 1.33"


def test_rounds_are_counted_by_length_and_by_position():
    assert histogram([3, 1, 10, 3]) == {"1": 1, "3": 2, "10": 1}
    assert list(histogram([10, 2])) == ["2", "10"]
    assert per_position([3, 1, 4, 1]) == [0.5, 0.5, 0.25]
    assert (histogram([]), per_position([]), per_position([1, 1])) == ({}, [], [])
