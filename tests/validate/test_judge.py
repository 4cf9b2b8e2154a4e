"""Verdicts from hand-made measurements: what passes, what fails, what stays undecided."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from compatfix.validate.benchmark import benchmark
from compatfix.validate.judge import SITUATIONS, CodeData, describe_difference, judge_code
from compatfix.validate.judge_weights import judge_weights
from compatfix.validate.tally import add_lengths, mean_length, merge, new_tally

DIFFERENCE = {
    "prompt": 3, "where": "", "index": 7, "got": 11, "expected": 12, "margin": 0.62,
    "state": {"round": 2, "layer": 4, "kind": "linear_attention", "tensor": "recurrent_states", "difference": 1.5,
              "note": ""},
}  # fmt: skip


def tally(mode: str, profile: str = "oracle", **changes: Any) -> dict[str, Any]:
    made = new_tally(mode, profile, 24, 64)
    made.update(run=24, same=24, tokens=24 * 64, features_checked=24, forwards=400)
    made["accepted"] = {"full": 1, "partial": 9, "zero": 3}
    return {**made, **changes}


def fault(name: str, caught: bool = True, applicable: bool = True) -> dict[str, Any]:
    return {"name": name, "what": name, "caught": caught, "applicable": applicable}


def reference(**changes: Any) -> dict[str, Any]:
    return {"prompt_length": 2, "text_length": 80, "disagreements": [], **changes}


def bf16(*differences: dict[str, Any]) -> dict[str, Any]:
    row = {"mode": "chain", "run": 4, "same": 4 - len(differences), "differences": list(differences), "error": None}
    return {"noise": 0.25, "modes": [row]}


GOOD = CodeData(
    references=[reference()],
    plain=tally("plain", "none"),
    modes=[tally("chain"), tally("tree-32")],
    exercised={mode: dict.fromkeys(SITUATIONS, 3) for mode in ("chain", "tree-32")},
    faults=[fault(str(i)) for i in range(7)],
    bf16=bf16(),
    subject={"windows": {"target": 12}, "conv_kernel": 4, "target_class": "Qwen3ForCausalLM", "stubbed": ["loguru"]},
)


def broken(**changes: Any) -> CodeData:
    return replace(deepcopy(GOOD), **changes)


def test_everything_as_planned_passes_with_a_note_on_stubs():
    verdict, findings = judge_code(GOOD)
    assert verdict.status == "passed"
    assert "chain, tree-32 equals plain decoding on 24 prompts" in verdict.reason
    assert [(f.code, f.level) for f in findings] == [("CF913", "note")]


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (broken(modes=[tally("chain", same=23, differences=[DIFFERENCE])]), "CF901", "token 7 is 11"),
        (
            broken(modes=[tally("chain", features=[{"prompt": 0, "difference": 2.0, "allowed": 0.1}])]),
            "CF916",
            "features",
        ),
        (broken(modes=[tally("chain", draft_cache=[{"prompt": 0, "reason": "length"}])]), "CF916", "draft's own cache"),
        (
            broken(modes=[tally("chain", error={"type": "IndexError", "message": "gone", "place": None})]),
            "CF910",
            "gone",
        ),
        (
            broken(modes=[tally("chain", error={"type": "R", "message": "no", "place": None, "refused": True})]),
            "CF911",
            "no",
        ),
        (
            broken(references=[reference(disagreements=[{"prompt": 0, "index": 5, "ways": ["a", "b"]}])]),
            "CF904",
            "a and b differ at token 5",
        ),
        (
            broken(bf16=bf16({"prompt": 1, "index": 2, "got": 5, "expected": 6, "behind": 3.0, "kind": "corruption"})),
            "CF909",
            "3 behind",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_fails(data, code, words):
    verdict, findings = judge_code(data)
    assert verdict.status == "failed"
    assert findings[0].code == code
    assert words in findings[0].message


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (broken(modes=[tally("chain", run=20, same=20), tally("tree-32")]), "CF903", "20 of 24 prompts run"),
        (broken(modes=[tally("chain", lost=2), tally("tree-32")]), "CF903", "could not be followed"),
        (
            broken(modes=[tally("chain", accepted={"full": 0, "partial": 1, "zero": 1})]),
            "CF903",
            "chain: full acceptance never occurred",
        ),
        (broken(exercised={"tree-32": GOOD.exercised["tree-32"]}), "CF903", "chain: full acceptance never occurred"),
        (broken(references=[reference(text_length=6)]), "CF903", "never wrapped"),
        (broken(references=[reference(prompt_length=9)]), "CF903", "convolution kernel"),
        (broken(bf16=None), "CF903", "bf16 was not run"),
        (broken(skipped=["faults"], faults=[]), "CF903", "faults was not run"),
        (broken(faults=[fault(str(i), caught=i != 3) for i in range(8)]), "CF902", "not seen: 3"),
        (broken(faults=[fault(str(i), applicable=i < 6) for i in range(8)]), "CF902", "only 6 faults"),
        (broken(modes=[]), "CF903", "no mode was run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_known_is_undecided(data, code, words):
    verdict, findings = judge_code(data)
    assert verdict.status == "undecided"
    assert any(f.code == code and words in f.message for f in findings)


def test_rounding_in_bf16_passes():
    close = {"prompt": 1, "index": 2, "got": 5, "expected": 6, "behind": 0.1, "kind": "rounding"}
    assert judge_code(broken(bf16=bf16(close)))[0].status == "passed"


def test_a_difference_is_told_in_one_sentence():
    assert describe_difference(DIFFERENCE) == (
        "prompt 3: token 7 is 11, plain decoding gives 12 (margin 0.62); first wrong state: layer 4 (linear_attention)"
        ", recurrent_states, after round 2, off by 1.5"
    )


def test_shares_of_a_mode_add_up():
    one, two = tally("chain", run=12, same=11), tally("chain", run=12, same=12)
    add_lengths(one, [1, 3])
    add_lengths(two, [4])
    (both,) = merge([one, two])
    assert (both["run"], both["same"], both["rounds"]) == (24, 23, 3)
    assert both["histogram"] == {"1": 1, "3": 1, "4": 1}
    assert both["per_position"] == [2, 2, 1]
    assert mean_length(both) == pytest.approx(8 / 3)


def test_the_benchmark_is_labelled_and_counts_stages_once():
    chain = tally("chain", stage_times={"draft": 1.0, "build": 2.0, "build_heap": 1.5, "verify": 1.0})
    add_lengths(chain, [2, 4])
    table = benchmark(None, [chain])
    assert table["label"] == "oracle draft"
    assert table["rows"][0]["accepted_length"] == 3.0
    assert table["rows"][0]["per_position"] == [1.0, 0.5, 0.5]
    assert table["rows"][0]["stage_shares"]["build"] == 0.5


def test_scopes_that_a_tiny_model_cannot_speak_for_are_unmeasured_with_a_next_step():
    scopes, findings = judge_weights("tiny", True, None, None)
    assert [s.scope for s in scopes] == ["kernels", "weights", "draft", "speed"]
    assert all(s.status == "unmeasured" and s.next_step for s in scopes)
    assert findings == ()


def weights_row(mode: str, **changes: Any) -> dict[str, Any]:
    row = {"mode": mode, "differences": [], "error": None, "accepted_length": 3.2, "speed_up": 2.0}
    return {**row, **changes}


def test_real_weights_are_judged_by_scope():
    rows = [weights_row("plain", speed_up=1.0), weights_row("chain"), weights_row("tree-32", speed_up=1.4)]
    result = {"modes": rows, "surplus": [], "prompts": 4, "dtype": "float32", "noise": 1e-5, "device": "cpu"}
    scopes, _ = judge_weights("weights", True, {"error": None, "result": result}, None)
    assert [s.status for s in scopes] == ["unmeasured", "passed", "passed", "passed"]
    assert "fastest: chain" in scopes[3].reason


def test_an_incomplete_checkpoint_fails_its_scope():
    error = {"code": "CF912", "message": "2 keys of the target are missing", "detail": {}}
    scopes, findings = judge_weights("weights", True, {"error": error, "result": None}, None)
    assert [s.status for s in scopes] == ["unmeasured", "failed", "unmeasured", "unmeasured"]
    assert findings[0].code == "CF912"
