"""Verdicts on real weights, draft and speed, from hand-made measurements."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.validate.judge_weights import judge_weights
from tests.validate.made import differing, weights_result, weights_row


def test_scopes_that_a_tiny_model_cannot_speak_for_are_unmeasured_with_a_next_step():
    scopes, findings = judge_weights("tiny", True, None, None)
    assert [s.scope for s in scopes] == ["weights", "draft", "speed"]
    assert all(s.status == "unmeasured" and s.next_step for s in scopes)
    assert findings == ()


def judged(*rows: dict[str, Any]) -> dict[str, Any]:
    scopes, _ = judge_weights("weights", True, {"error": None, "result": weights_result(*rows)}, None)
    return {scope.scope: scope for scope in scopes}


def test_real_weights_are_judged_by_scope():
    scopes = judged(weights_row("plain"), weights_row("chain"), weights_row("tree-32"))
    assert {name: scope.status for name, scope in scopes.items()} == {
        "weights": "passed",
        "draft": "passed",
        "speed": "unmeasured",
    }
    assert (
        scopes["weights"].reason
        == "loads completely; 8 of 8 texts equal plain decoding in every mode (bfloat16); 4 planted faults caught"
    )
    assert scopes["speed"].reason == "nothing was timed"


def test_texts_that_differ_by_rounding_are_counted_in_the_worst_mode():
    chain, tree = weights_row("chain", **differing(0.21)), weights_row("tree-32", **differing(0.03, 0.12))
    scope = judged(weights_row("plain"), chain, tree)["weights"]
    assert scope.status == "passed"
    assert scope.reason == (
        "loads completely; at least 6 of 8 texts equal plain decoding in every mode (bfloat16); in tree-32 2 differ by "
        "rounding only (largest margin 0.21 in any mode, noise 0.25); 4 planted faults caught"
    )


@pytest.mark.parametrize(
    ("lengths", "status", "words"),
    [
        ((1.0, 1.08), "failed", "chain 1.00, tree-32 1.08; the best is below 1.2: one drafted token accepted in five"),
        ((1.0, 1.19), "failed", "below 1.2"),
        ((1.0, 1.2), "passed", "chain 1.00, tree-32 1.20; the best is at least 1.2: one drafted token accepted in"),
    ],
)
def test_a_draft_passes_by_a_criterion_that_is_told(lengths, status, words):
    chain, tree = (weights_row(m, accepted_length=n) for m, n in zip(("chain", "tree-32"), lengths, strict=True))
    scope = judged(weights_row("plain", accepted_length=1.0), chain, tree)["draft"]
    assert scope.status == status
    assert words in scope.reason


def test_an_incomplete_checkpoint_fails_its_scope_and_nothing_else_is_known():
    error = {"code": "CF912", "message": "2 keys of the target are missing", "detail": {}}
    scopes, findings = judge_weights("weights", True, {"error": error, "result": None}, None)
    assert [s.status for s in scopes] == ["failed", "unmeasured", "unmeasured"]
    assert findings[0].code == "CF912"
    assert scopes[0].reason == "2 keys of the target are missing"
    assert [s.reason for s in scopes[1:]] == ["the checkpoint did not load"] * 2
    assert {s.next_step for s in scopes} == {"use the checkpoint's own class, or complete the directory"}


def test_weights_that_were_not_run_because_the_code_is_wrong_say_so():
    scopes, findings = judge_weights("weights", True, None, None)
    assert [s.status for s in scopes] == ["unmeasured"] * 3
    assert {s.next_step for s in scopes} == {"mend what scope code names first"}
    assert findings == ()
