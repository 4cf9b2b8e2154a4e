"""Verdicts from hand-made measurements: what passes, what fails, what stays undecided."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from compatfix.validate.judge import SITUATIONS, CodeData, describe_difference, judge_code
from compatfix.validate.tally import add_lengths, mean_length, merge
from tests.validate.made import checks, refusal, tally

DIFFERENCE = {
    "prompt": 3, "where": "", "index": 7, "got": 11, "expected": 12, "margin": 0.62,
    "state": {"round": 2, "layer": 4, "kind": "linear_attention", "tensor": "recurrent_states", "difference": 1.5,
              "note": ""},
}  # fmt: skip


def fault(name: str, caught: bool = True, applicable: bool = True) -> dict[str, Any]:
    return {"name": name, "what": name, "caught": caught, "applicable": applicable}


def reference(**changes: Any) -> dict[str, Any]:
    return {"prompt_length": 2, "text_length": 80, "disagreements": [], **changes}


def bf16(*differences: dict[str, Any]) -> dict[str, Any]:
    row = {"mode": "chain", "run": 4, "same": 4 - len(differences), "differences": list(differences), "error": None}
    return {"noise": 0.25, "prompts": 4, "modes": [{**row, "checks": checks()}]}


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
    assert verdict.reason == (
        "greedy text equals plain decoding (tiny Qwen3ForCausalLM, oracle draft): chain, tree-32 on 24 prompts x 64 "
        "tokens; bf16: 4 of 4 texts equal; 7 planted faults caught; worst node 0 off"
    )
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
            broken(modes=[tally("chain", error=refusal("no strategy agrees", start_up=True))]),
            "CF911",
            "no strategy agrees",
        ),
        (
            broken(modes=[tally("chain", error=refusal("cannot crop a cache of 4 tokens to 9"))]),
            "CF910",
            "cannot crop",
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
        (
            broken(exercised={**GOOD.exercised, "chain": {**GOOD.exercised["chain"], "first token is a stop": 0}}),
            "CF903",
            "chain: first token is a stop never occurred",
        ),
        (broken(references=[reference(text_length=6)]), "CF903", "never wrapped"),
        (broken(references=[reference(prompt_length=9)]), "CF903", "convolution kernel"),
        (broken(bf16=None), "CF903", "bf16 was not run"),
        (broken(skipped=["faults"], faults=[]), "CF903", "faults was not run"),
        (broken(faults=[fault(str(i), caught=i != 3) for i in range(8)]), "CF902", "not seen: 3"),
        (broken(faults=[fault(str(i), applicable=i < 6) for i in range(8)]), "CF902", "only 6 faults"),
        (broken(modes=[]), "CF903", "no mode was run"),
        (broken(subject={**GOOD.subject, "not_judged": ["old.generate"]}), "CF903", "not judged: old.generate"),
        (broken(modes=[tally("chain", planned=7, run=7, tokens_planned=7 * 64)]), "CF903", "7 prompts x 64 tokens are"),
        (broken(modes=[tally("chain", tokens_planned=24 * 15)]), "CF903", "24 prompts x 15 tokens are too few"),
        (broken(plain=tally("plain", "none", forwards=2 * 24 * 64)), "CF903", "the baseline runs 1.98 forwards per"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_known_is_undecided(data, code, words):
    verdict, findings = judge_code(data)
    assert verdict.status == "undecided"
    assert any(f.code == code and words in f.message for f in findings)


def test_acceptance_given_away_is_a_warning_and_no_failure():
    first = {"prompt": 5, "round": 7, "committed": 2, "agreed": 6}
    oracle = tally("chain", rounds_followed=30, rounds_short=4, short=[first])
    situations = tally("chain", "situations", rounds_followed=10, rounds_short=1, short=[{**first, "prompt": 500}])
    verdict, findings = judge_code(broken(modes=[oracle, situations, tally("tree-32")]))
    assert verdict.status == "passed"
    (finding,) = [finding for finding in findings if finding.code == "CF918"]
    assert finding.level == "warning"
    assert finding.message == (
        "chain accepts fewer tokens than the target agrees with in 5 of 40 rounds, first in round 7 of prompt 5 "
        "(2 of 6)"
    )


def test_results_without_accepted_lengths_are_noted_but_for_a_draft_s_own_loop():
    silent = [tally("chain", lengths_compared=0), tally("tree-32"), tally("loop", lengths_compared=0)]
    exercised = {**GOOD.exercised, "loop": GOOD.exercised["chain"]}
    verdict, findings = judge_code(broken(modes=silent, exercised=exercised))
    assert verdict.status == "passed"
    assert [finding.message for finding in findings if finding.code == "CF919"] == [
        "chain: the result holds no accepted lengths, so none were compared with those seen"
    ]


def test_every_field_and_every_argument_is_told_once():
    entry = {"prompt": 3, "field": "num_output_tokens", "claimed": "48", "seen": "24 seen"}
    fields = [entry, {**entry, "prompt": 4}, {**entry, "field": "decode_rounds"}]
    changed = [{"prompt": 1, "where": "", "what": "input_ids[1] is 0 instead of 7"}] * 2
    _, findings = judge_code(broken(modes=[tally("chain", fields=fields, changed=changed), tally("tree-32")]))
    assert sorted(finding.message for finding in findings if finding.code == "CF901") == [
        "chain (oracle): decode_rounds of the result is 48 on prompt 3, 24 seen",
        "chain (oracle): num_output_tokens of the result is 48 on prompt 3, 24 seen",
        "chain (oracle): the call changes its caller's arguments: behind prompt 1 input_ids[1] is 0 instead of 7",
    ]


def test_a_reduced_run_says_so():
    small = tally("chain", planned=8, run=8, tokens_planned=8 * 32)
    verdict, _ = judge_code(broken(modes=[small, tally("tree-32")]))
    assert verdict.status == "passed"
    assert verdict.reason.startswith("reduced run: 8 prompts x 32 tokens; ")


def test_rounding_in_bf16_passes_and_is_told():
    close = {"prompt": 1, "index": 2, "got": 5, "expected": 6, "behind": 0.1, "kind": "rounding"}
    verdict, _ = judge_code(broken(bf16=bf16(close)))
    assert verdict.status == "passed"
    assert "bf16: 3 of 4 texts equal, 1 by rounding;" in verdict.reason


def test_each_mode_is_praised_for_what_the_oracle_ran_in_it():
    loop = [
        tally("loop", planned=8, run=8, same=8, tokens_planned=8 * 32),
        tally("loop", "forced rejections", planned=30, run=30, same=30),
    ]
    data = broken(
        modes=[*GOOD.modes, *loop],
        exercised={**GOOD.exercised, "loop": GOOD.exercised["chain"]},
        subject={**GOOD.subject, "loop": "DFlashDraftModel.spec_generate"},
    )
    verdict, _ = judge_code(data)
    assert "chain, tree-32 on 24 prompts x 64 tokens, spec_generate on 8 prompts x 32 tokens;" in verdict.reason
    _, findings = judge_code(replace(data, exercised=GOOD.exercised))
    assert "spec_generate: stop token inside a path never occurred" in [finding.message for finding in findings]


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("cannot crop from 19 to 4 tokens: the recurrent states of this cache cannot be rolled back that far", "CF202"),
        ("a verified tree is still pending on this cache: commit or crop it before the next verify", "CF206"),
        ("a batch of 2 cannot be verified; one sequence at a time", None),
    ],
)
def test_a_refused_call_is_an_exception_and_names_the_rule_that_writes_the_missing_one(message, rule):
    verdict, findings = judge_code(broken(modes=[tally("chain", error=refusal(message))]))
    assert findings[0].code == "CF910"
    assert message in findings[0].message
    if rule is None:
        assert findings[0].fix is None
    else:
        assert findings[0].fix.startswith(f"the call that belongs to it is missing; {rule} (")
        assert verdict.next_step == findings[0].fix
    # The same words of another exception advise nothing.
    other = {**refusal(message), "refused": False}
    assert judge_code(broken(modes=[tally("chain", error=other)]))[1][0].fix is None


@pytest.mark.parametrize(
    ("of", "words"), [("draft's cache", "layer 0 of the draft's cache (L.crop)"), (None, "layer 0 (L.crop)")]
)
def test_an_exception_names_the_cache_whose_layer_raised(of, words):
    layer = {"layer": 0, "class": "L", "function": "crop", "of": of}
    error = {"type": "ValueError", "message": "no", "place": None, "layer": layer}
    _, findings = judge_code(broken(modes=[tally("chain", error=error)]))
    assert findings[0].message == f"chain: ValueError: no (raised by {words})"


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
