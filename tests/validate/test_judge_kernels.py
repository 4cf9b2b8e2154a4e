"""Scope kernels: from a slice at real width, or from the checkpoint itself."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.model import Finding
from compatfix.validate.judge_kernels import judge_kernels
from tests.validate.made import checks, differing, planted, weights_result, weights_row

FALLBACK = "torch_chunk_gated_delta_rule"


def sliced(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    more = {
        "layers": [0, 1, 2, 3],
        "depth": 64,
        "values": "random",
        "windows": {},
        "functions": {"flash-linear-attention": FALLBACK},
    }
    rows = rows or (weights_row("plain"), weights_row("chain"), weights_row("tree-32"))
    return {"error": None, "result": weights_result(*rows, **{**more, **changes})}


def test_a_tiny_model_says_nothing_about_kernels():
    scope, findings = judge_kernels("tiny", None, None, None)
    assert (scope.status, findings) == ("unmeasured", ())
    assert scope.next_step == "gate --on slice, on the machine that will run it"


def test_a_right_slice_passes_and_says_what_ran():
    scope, findings = judge_kernels("slice", sliced(), None, None)
    assert (scope.status, findings) == ("passed", ())
    assert scope.reason == (
        "cpu, attention sdpa; for flash-linear-attention: torch_chunk_gated_delta_rule; 4 of 64 layers at real width, "
        "values random: 8 of 8 texts equal plain decoding in every mode (bfloat16); 4 planted faults caught"
    )


def test_the_checkpoint_itself_speaks_of_kernels_too():
    result = weights_result(weights_row("plain"), weights_row("chain", **differing(0.1)))
    scope, _ = judge_kernels("weights", None, None, result)
    assert scope.status == "passed"
    assert "the whole checkpoint: at least 7 of 8 texts" in scope.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (differing(4.0, kind="corruption"), "chain on the slice: token 5 of prompt 0 is 1, plain decoding gives 2"),
        (
            {"checks": checks(draft="far off")},
            "chain on the slice: the draft's output with its cache differ from plain",
        ),
        ({"error": {"type": "RuntimeError", "message": "no kernel", "place": None, "refused": False}}, "no kernel"),
    ],
)
def test_what_rounding_does_not_explain_fails(changes, words):
    scope, findings = judge_kernels("slice", sliced(weights_row("plain"), weights_row("chain", **changes)), None, None)
    assert scope.status == "failed"
    assert words in scope.reason
    assert findings[0].level == "error"


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        ([weights_row("chain", run=5, same=5)], {}, "chain in the slice: 5 of 8 prompts run"),
        ([weights_row("chain")], {"faults": [planted("a")] * 3}, "only 3 faults could be planted on the slice, 4"),
        (
            [weights_row("chain")],
            {"faults": [planted("leak", caught=False)] * 4},
            "planted fault not seen on the slice",
        ),
    ],
)
def test_what_was_not_shown_is_undecided(rows, changes, words):
    scope, findings = judge_kernels("slice", sliced(weights_row("plain"), *rows, **changes), None, None)
    assert scope.status == "undecided"
    assert words in scope.reason
    assert {finding.level for finding in findings} == {"note"}


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (None, None, "not run: the code is wrong on the tiny model"),
        ({"error": {"code": "CF912", "message": "needs 9 GB", "detail": {"hint": "elsewhere"}}}, None, "needs 9 GB"),
        (None, Finding("CF902", "error", "measured", "took longer than 600 s"), "took longer than 600 s"),
    ],
)
def test_a_slice_that_did_not_run_leaves_the_scope_unmeasured(answer, failure, words):
    scope, findings = judge_kernels("slice", answer, failure, None)
    assert scope.status == "unmeasured"
    assert words in scope.reason
    assert scope.next_step
    assert len(findings) == (words != "not run: the code is wrong on the tiny model")
