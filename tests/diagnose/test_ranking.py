"""The ranking without any model: which gain counts, which repair is kept, what a suspect is called."""

from __future__ import annotations

import math

import pytest

from compatfix.diagnose.ranking import (
    Measured,
    as_bad_as_random,
    best_of,
    chances,
    chosen,
    counting,
    gaining,
    weight_of,
)
from compatfix.diagnose.toggle import Read, Suspect, Toggle
from compatfix.diagnose.verdicts import Level, verdicts

FLAT = (1.0, 1.1, 1.2, 1.0, 1.3, 1.1, 1.0, 1.2)
GOOD = (3.0, 2.1, 8.0, 1.5, 4.0, 2.2, 3.1, 6.0)


def measured(name: str, after: tuple[float, ...], *, rank: int = 0, mode: str = "chain", **more: object) -> Measured:
    return Measured(name, f"{name} toggled", mode, rank, FLAT[: len(after)], after, **more)  # type: ignore[arg-type]


def scaled(by: float) -> tuple[float, ...]:
    return tuple(value * by for value in FLAT)


def test_chances_are_those_of_turning_signs_counted_by_hand() -> None:
    # Two prompts, four ways; +3+1 is reached once, and 3-1 twice as the second largest.
    assert chances([(3.0, 1.0)]) == [0.25]
    assert chances([(3.0, -1.0)]) == [0.5]
    # Sizes by way, ++ +- -+ --: 1.41 0 0 -1.41 and 1 1 -1 -1, so the larger is 1.41 1 0 -1.
    assert chances([(1.0, 1.0), (1.0, 0.0)]) == [0.25, 0.5]
    assert chances([(0.0, 0.0)]) == [1.0]


def test_many_idle_toggles_make_luck_larger() -> None:
    gain = (0.5, 0.2, 0.4, 0.3, 0.6, -0.1, 0.2)
    alone = chances([gain])[0]
    idle = [tuple(0.3 * math.sin(7 * k + 3 * i * i) for i in range(7)) for k in range(20)]
    assert alone <= 0.025 < chances([gain, *idle])[0]


def test_drawn_ways_agree_with_counted_ones() -> None:
    gain = tuple(0.1 + 0.3 * math.sin(5 * i) for i in range(12))
    drawn = chances([(*gain, 0.0)])[0]  # thirteen prompts: drawn; the last changes nothing
    assert drawn == pytest.approx(chances([gain])[0], abs=0.03)


def test_a_gain_on_every_prompt_counts_and_one_on_a_single_prompt_does_not() -> None:
    lucky = (9.0, *FLAT[1:])
    found = [measured("every", GOOD), measured("single", lucky), measured("worse", scaled(0.9))]
    assert [entry.suspect for entry in counting(found)] == ["every"]
    assert chosen(found) == found[0]
    assert chosen(found[1:]) is None


def test_a_small_gain_is_not_a_cause_and_a_tiny_one_is_nothing() -> None:
    assert chosen([measured("tiny", scaled(1.04))]) is None
    small = chosen([measured("small", scaled(1.07))])
    assert small is not None and weight_of(small) == "contributes"
    assert weight_of(measured("large", scaled(1.2))) == "cause"


def test_five_prompts_tell_nothing() -> None:
    assert gaining([measured("few", GOOD[:5])]) == {}
    assert chosen([measured("few", GOOD[:5])]) is None
    assert chosen([measured("six", GOOD[:6])]) is not None


def test_of_equal_gains_the_narrowest_repair_is_kept() -> None:
    wide, narrow = measured("wide", scaled(2.0), rank=5), measured("narrow", scaled(1.95), rank=1)
    assert chosen([wide, narrow]) == narrow
    assert chosen([wide, measured("narrow", scaled(1.5), rank=1)]) == wide


def test_what_mends_the_text_comes_before_any_gain() -> None:
    mending = measured("mends", scaled(0.9), rank=9, wrong_before=3)
    assert chosen([measured("gains", GOOD, wrong_before=3, wrong_after=3), mending]) == mending
    half = measured("half", scaled(0.9), wrong_before=3, wrong_after=1)
    assert chosen([half]) is None


def test_a_screened_toggle_never_counts() -> None:
    assert chosen([measured("screened", GOOD[:3], screened=True)]) is None
    assert best_of([measured("screened", FLAT[:3], screened=True), measured("full", scaled(0.9))]).screened  # type: ignore[union-attr]


def test_as_bad_as_random() -> None:
    assert as_bad_as_random(FLAT, FLAT)
    assert as_bad_as_random((9.0, *FLAT[1:]), FLAT)
    assert not as_bad_as_random(GOOD, FLAT)


def suspect(name: str, **more: object) -> Suspect:
    return Suspect(name, "?", "CF951", (Toggle(f"{name} toggled", f"mend {name}"),), **more)  # type: ignore[arg-type]


def statuses(found: list) -> dict[str, str]:
    return {verdict.name: verdict.status for verdict in found}


def test_two_causes_are_both_named_in_the_order_of_their_levels() -> None:
    first, second = measured("b", scaled(2.0)), measured("a", scaled(1.5))
    levels = [Level([second, first], first), Level([second], second), Level([], None)]
    found = verdicts([suspect("a"), suspect("b"), suspect("c")], levels, {"c": "raised ValueError"}, False)
    assert [(v.name, v.status, v.level) for v in found[:2]] == [("b", "cause", 1), ("a", "cause", 2)]
    assert found[0].step == "mend b"
    assert (found[2].status, found[2].reason) == ("unmeasured", "raised ValueError")


def test_a_gain_that_another_repair_takes_over_is_not_a_cause() -> None:
    kept, also = measured("kept", scaled(2.0)), measured("also", scaled(1.9), rank=1)
    levels = [Level([kept, also], kept), Level([measured("also", scaled(1.0))], None)]
    found = {v.name: v for v in verdicts([suspect("kept"), suspect("also")], levels, {}, False)}
    assert found["also"].status == "not the cause"
    assert "once kept is repaired" in found["also"].reason


def test_missing_weights_come_first_whatever_gains() -> None:
    gain = measured("a", GOOD)
    levels = [Level([gain], gain), Level([], None)]
    lost = Suspect("draft's weights", "?", "CF952", read=Read("certain", "3 tensors are missing"), step="complete it")
    found = verdicts([suspect("a"), lost], levels, {}, False)
    assert [(v.name, v.status, v.evidence) for v in found] == [
        ("draft's weights", "cause", "read"),
        ("a", "cause", "measured"),
    ]


@pytest.mark.parametrize(("hopeless", "status"), [(True, "cause"), (False, "not the cause")])
def test_a_hint_names_the_cause_only_beside_the_acceptance_of_an_untrained_draft(hopeless: bool, status: str) -> None:
    hinted = suspect("basis", read=Read("hint", "all norms are constant"))
    levels = [Level([measured("basis", scaled(0.9))], None)]
    assert statuses(verdicts([hinted], levels, {}, hopeless)) == {"basis": status}


def test_a_hint_stands_back_behind_a_measured_cause() -> None:
    gain = measured("a", GOOD)
    levels = [Level([gain], gain), Level([], None)]
    hinted = suspect("basis", read=Read("hint", "all norms are constant"))
    assert statuses(verdicts([hinted, suspect("a")], levels, {}, True))["a"] == "cause"
    assert statuses(verdicts([hinted, suspect("a")], levels, {}, True))["basis"] != "cause"


def test_what_does_not_apply_says_why() -> None:
    found = verdicts([Suspect("siblings", "?", "CF950", reason="no tree")], [Level([], None)], {}, False)
    assert (found[0].status, found[0].reason) == ("not applicable", "no tree")
