"""A long text per mode: drift is rounding up to plain decoding's own noise, and an error beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.validate.bench import CHAIN, Bench, Mode, build_bench
from compatfix.validate.judge_long_run import bounds, open_long_run, praise_long_run, wrong_long_run
from compatfix.validate.long_run import run_long
from tests.validate.conftest import TARGETS

TOKENS = 64
NOISE = [1e-6, 4e-6, 2e-6, 2e-6, 2e-6, 2e-6, 2e-6, 8e-6]


def section(**changes: Any) -> dict[str, Any]:
    points = [{"committed": 8 * i, "state": 2e-6, "logits": 2e-5, "layer": 1, "tensor": "keys", "note": ""}
              for i in range(8)]  # fmt: skip
    row = {"mode": "tree-32", "error": None, "produced": 64, "same": True, "lost": 0, "rounds": 20}
    row |= {"behind": 0.0, "index": 0, "points": points, **changes}
    noise = [{"state": state, "logits": state * 10} for state in NOISE]
    return {"tokens": 64, "prompt_length": 21, "unit": 1e-8, "noise": noise, "modes": [row]}


def point(at: int, **changes: Any) -> list[dict[str, Any]]:
    points = section()["modes"][0]["points"]
    return [{**p, **changes} if i == at else p for i, p in enumerate(points)]


def test_each_eighth_has_the_largest_noise_up_to_it():
    assert bounds(section()).state == pytest.approx((4e-6, *[1.6e-5] * 6, 3.2e-5))


def test_what_rounding_explains_is_right_and_told_with_its_noise():
    assert not wrong_long_run(section()) and not open_long_run(section())
    assert praise_long_run(section()).endswith("from 2e-06 to 2e-06, plain decoding's noise from 1e-06 to 8e-06")


def test_plain_decoding_without_any_noise_still_leaves_rounding_steps():
    still = {**section(), "unit": 1e-6, "noise": [{"state": 0.0, "logits": 0.0}] * 8}
    assert not wrong_long_run(still)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": point(5, state=2e-5)}, "the state is 2e-05 off 40 tokens behind the prompt, where rounding"),
        ({"points": point(0, state=float("inf"), note="missing")}, "layer 1, keys (missing)"),
        ({"points": point(7, logits=4e-4)}, "the logits are 0.0004 off 56 tokens behind the prompt"),
        ({"behind": 0.3, "index": 50}, "token 50 lies 0.3 behind plain decoding's best one"),
        ({"produced": 63}, "63 tokens were returned"),
    ],
)  # fmt: skip
def test_what_rounding_does_not_explain_is_wrong(changes, words):
    (finding,) = wrong_long_run(section(**changes))
    assert finding.code == "CF901" and words in finding.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"points": point(0)[:6]}, "6 of 8 checkpoints were compared"),
        ({"points": point(3, logits=None)}, "7 of 8 checkpoints were compared"),
        ({"lost": 2}, "could not be followed in 2 rounds"),
    ],
)
def test_what_was_not_compared_is_not_passed(changes, words):
    (finding,) = open_long_run(section(**changes))
    assert finding.code == "CF903" and words in finding.message


def bench(tree: Any) -> Bench:
    target, draft = TARGETS / "qwen3-8b", TARGETS / "qwen3-8b-dflash"
    return build_bench({"tree": str(tree), "target": str(target), "draft": str(draft), "seed": 0})


@pytest.mark.usefixtures("clean_modules")
def test_a_right_tree_is_compared_at_every_eighth_and_passes(variant):
    found = run_long(bench(variant()), [CHAIN, Mode("tree", 8)], TOKENS, lambda *_: None)
    assert [len(row["points"]) for row in found["modes"]] == [8, 8]
    assert not wrong_long_run(found) and not open_long_run(found)
    assert all(0 < entry["state"] < 1e-4 for entry in found["noise"])


@pytest.mark.usefixtures("clean_modules")
@pytest.mark.parametrize("fault", ["path not kept", "positions off", "mask dropped"])
def test_a_wrong_tree_is_called_wrong_unless_nothing_came_of_it(variant, fault):
    found = run_long(bench(variant(fault)), [Mode("tree", 8)], TOKENS, lambda *_: None)
    named = [finding.message for finding in wrong_long_run(found)]
    # The mask is a token that the target never emits: dropping it changes nothing here.
    assert bool(named) == (fault != "mask dropped")
