"""From timed runs, made by hand, to rows, recommendation, estimate, warnings and the verdict on speed."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.model import Finding, Report
from compatfix.report.tables import tables
from compatfix.validate.judge_speed import judge_draft, judge_speed, with_measured
from compatfix.validate.measured import summarise
from compatfix.validate.recommend import simplicity
from compatfix.validate.timing_statements import what_was_timed
from tests.validate.made import timed_raw, weights_row


def rows(section: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["mode"]: row for row in section["rows"]}


def test_speed_ups_are_paired_by_prompt_and_noise_is_called_noise() -> None:
    section = summarise(timed_raw({"chain": 2.0, "tree-8": 2.0, "tree-16": 0.7}), 0)
    found = rows(section)
    assert list(found) == ["plain", "plain again", "chain", "tree-8", "tree-16", "library"]
    assert found["chain"]["speed_up"] == pytest.approx(2.0, rel=0.02)
    assert (found["chain"]["difference"], found["tree-16"]["difference"]) == ("faster", "slower")
    assert found["plain again"]["difference"] == "noise"
    assert 1 < section["floor"] < 1.03
    assert found["chain"]["low"] < found["chain"]["speed_up"] < found["chain"]["high"]
    assert found["chain"]["accepted_length"] == 3.0
    assert found["chain"]["tokens_per_round"] == pytest.approx(64 / 22)
    assert section["recommendation"]["mode"] == "chain"
    assert (
        "no difference that is not noise to tree-8, and chain is the simpler one"
        in section["recommendation"]["sentence"]
    )


def test_a_tree_is_recommended_where_it_is_faster_by_more_than_noise() -> None:
    section = summarise(timed_raw({"chain": 1.5, "tree-8": 2.0, "tree-16": 2.5}), 0)
    assert section["recommendation"]["mode"] == "tree-16"
    assert section["recommendation"]["edge"] is True
    assert "the largest budget measured" in section["recommendation"]["sentence"]
    assert "1.67× (" in section["recommendation"]["sentence"]


@pytest.mark.parametrize(
    ("factors", "words"), [({"chain": 0.5}, "every mode is slower"), ({"chain": 1.003}, "more than noise")]
)
def test_plain_decoding_is_recommended_where_nothing_is_faster(factors, words) -> None:
    chosen = summarise(timed_raw(factors), 0)["recommendation"]
    assert chosen["mode"] == "plain"
    assert words in chosen["sentence"]


def test_a_slow_baseline_is_replaced_by_the_library_s() -> None:
    section = summarise(timed_raw({"chain": 2.0}, library=1.6), 0)
    assert section["baseline"] == "library"
    assert rows(section)["chain"]["speed_up"] == pytest.approx(2.0 / 1.6, rel=0.02)
    assert any("slower than the library's own loop (1.6" in warning for warning in section["warnings"])


def test_budgets_are_ordered_by_size() -> None:
    assert sorted(["tree-64", "tree-8", "chain", "tree-16"], key=simplicity) == [
        "chain",
        "tree-8",
        "tree-16",
        "tree-64",
    ]


def test_few_prompts_and_one_are_told() -> None:
    few = summarise(timed_raw({"chain": 2.0}, prompts=3), 0)
    assert "3 prompts are too few for an interval to be trusted: give 8 or more" in few["warnings"]
    one = summarise(timed_raw({"chain": 2.0}, prompts=1), 0)
    assert rows(one)["chain"]["difference"] == "noise"
    assert one["recommendation"]["mode"] == "plain"
    assert any("noise floor is unknown" in warning for warning in one["warnings"])


def test_noisy_prompts_say_how_many_would_do() -> None:
    section = summarise(timed_raw({"chain": 1.5}, spread=0.4, prompts=8), 0)
    assert section["prompts_enough"] > 8
    assert any("cannot tell 5% in every mode" in warning for warning in section["warnings"])


def test_repetitions_that_were_broken_off_are_told() -> None:
    assert any("2 of 3 repetitions" in w for w in summarise(timed_raw({"chain": 2.0}, planned=3), 0)["warnings"])


def test_a_mode_that_raised_keeps_its_row_and_says_nothing_else() -> None:
    raw = timed_raw({"chain": 2.0})
    raw["errors"]["tree-8"] = {"type": "UsageError", "message": "takes no top_p", "place": None}
    section = summarise(raw, 0)
    assert rows(section)["tree-8"]["error"]["message"] == "takes no top_p"
    assert rows(section)["tree-8"]["speed_up"] is None
    table = tables(Report("gate", {}, sections={"measured": section}))[0]
    assert ("tree-8", "–", "", "UsageError: takes no top_p") in table.rows


def test_an_estimate_is_marked_and_only_made_where_the_device_cannot_say() -> None:
    section = summarise(timed_raw({"chain": 2.0, "tree-256": 2.5}), 0)
    found = section["estimate"]
    assert found["estimate"] is True
    # 100 MB of draft and 20 MB of head beside 400 MB of target.
    assert found["rows"][0]["speed_up"] == pytest.approx(3.0 / 1.3)
    assert [row["beyond"] for row in found["rows"]] == [False, True]
    statement = what_was_timed({"measured": section})[-1]
    assert statement.evidence == "assumed"
    assert statement.text.startswith("estimate, not measured: on a device bound by reading weights chain 2.31×")
    assert summarise(timed_raw({"chain": 2.0}, device_kind="cuda", parameters=10**9), 0)["estimate"] is None
    assert summarise(timed_raw({"chain": 2.0}, device_kind="cuda", parameters=10**6), 0)["estimate"] is not None


def test_seconds_of_a_tiny_target_are_not_shown_and_those_of_a_large_one_are() -> None:
    def text(section: dict[str, Any]) -> str:
        found = tables(Report("gate", {}, sections={"measured": section}))
        return " ".join(" ".join((t.note, *t.columns, *sum(t.rows, ()))) for t in found)

    tiny, large = (summarise(timed_raw({"chain": 2.0}, parameters=count), 0) for count in (570_000, 10**9))
    assert "ms/token" not in text(tiny)
    assert "its seconds are not shown" in text(tiny)
    assert "ms/token (quartiles)" in text(large)


def test_speed_is_judged_by_what_is_not_noise() -> None:
    def status(raw: dict[str, Any]) -> str:
        return judge_speed(summarise(raw, 0), None, None).status

    large = 10**9
    assert status(timed_raw({"chain": 2.0}, parameters=large)) == "passed"
    assert status(timed_raw({"chain": 0.8}, parameters=large)) == "failed"
    assert status(timed_raw({"chain": 1.3}, parameters=large, spread=0.9)) == "undecided"
    assert status(timed_raw({"chain": 2.0}, parameters=large, prompts=1)) == "undecided"


def test_a_tiny_target_leaves_speed_unmeasured_however_fast_it_is() -> None:
    verdict = judge_speed(summarise(timed_raw({"chain": 9.0}, parameters=570_000), 0), None, None)
    assert verdict.status == "unmeasured"
    assert "0.6 M parameters says nothing about speed" in verdict.reason


def test_a_timing_without_result_leaves_speed_unmeasured() -> None:
    failure = Finding("CF011", "error", "measured", "no answer within 600 s")
    assert judge_speed(None, failure, None).status == "unmeasured"
    assert "no answer within 600 s" in judge_speed(None, failure, None).reason
    assert judge_speed(None, None, "not timed: --repetitions 0").reason == "not timed: --repetitions 0"


def test_the_draft_is_judged_by_what_was_counted_beside_the_timing() -> None:
    before = (judge_draft([weights_row("chain", accepted_length=9.0)]), judge_speed(None, None, None))
    scopes, findings = with_measured(before, summarise(timed_raw({"chain": 2.0}), 0), None, None)
    assert "chain 3.00" in scopes[0].reason
    assert [scope.scope for scope in scopes] == ["draft", "speed"]
    assert findings == ()
