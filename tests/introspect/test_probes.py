"""Probes say yes where it is so and no where it is not; an exception in one is its answer."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.introspect.probes import PROBES
from compatfix.introspect.probes.bench import Bench, Found, probe


def test_a_pure_attention_model_is_good_news(attention_answers: dict[str, Any]) -> None:
    for name in (
        "bare_cache_works",
        "seq_length_counts_tokens",
        "empty_cache_is_initialized",
        "rollback_restores_state",
        "snapshot_restores_state",
        "block_equals_steps",
        "tree_mask_reaches_every_layer",
        "hidden_states_layout",
        "embedding_is_raw",
        "head_gives_logits",
        "strategy_is_exact",
    ):
        assert attention_answers[name].ok is True, attention_answers[name].text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bare_cache_works", "raises IndexError"),
        ("rollback_restores_state", "recording, then crop(-n) the next logits are off by"),
        ("tree_mask_reaches_every_layer", "ignored by linear_attention layers (6 of 8)"),
    ],
)
def test_a_hybrid_is_bad_news_where_it_is(hybrid_answers: dict[str, Any], name: str, says: str) -> None:
    assert hybrid_answers[name].ok is False
    assert says in hybrid_answers[name].text


@pytest.mark.parametrize(
    "name", ["block_equals_steps", "snapshot_restores_state", "seq_length_counts_tokens", "hidden_states_layout"]
)
def test_a_hybrid_is_good_news_where_it_is(hybrid_answers: dict[str, Any], name: str) -> None:
    assert hybrid_answers[name].ok is True, hybrid_answers[name].text


def test_no_probe_ends_in_an_exception(
    hybrid_answers: dict[str, Any], attention_answers: dict[str, Any], windowed_answers: dict[str, Any]
) -> None:
    for answers in (hybrid_answers, attention_answers, windowed_answers):
        assert len(answers) == len(PROBES)
        assert [answer.probe for answer in answers.values() if answer.error] == []
        assert all(answer.question.endswith("?") for answer in answers.values())


def test_the_leak_of_a_tree_mask_is_told_by_kind_of_layer(hybrid_answers: dict[str, Any]) -> None:
    leaks = hybrid_answers["tree_mask_reaches_every_layer"].value["leak_by_kind"]
    assert leaks["linear_attention"] > 0.01
    assert leaks["full_attention"] < 1e-4


def test_numbers_stand_far_apart(hybrid_answers: dict[str, Any]) -> None:
    numbers = hybrid_answers["rollback_restores_state"].numbers
    assert numbers["noise"] < 1e-4 < 0.1 < numbers["difference"]
    assert numbers["fault"] > 0.1


def test_the_real_config_gives_the_cache(hybrid_answers: dict[str, Any]) -> None:
    value = hybrid_answers["cache_kinds"].value
    assert (value["class_name"], value["kinds"]) == ("DynamicCache", {"linear": 48, "full": 16})


def test_what_crop_means_here(attention_answers: dict[str, Any], hybrid_answers: dict[str, Any]) -> None:
    value = attention_answers["crop_semantics"].value
    assert value["negative"] == 11
    assert value["zero"] in (0, 14)
    assert all(isinstance(outcome, str) for outcome in hybrid_answers["crop_semantics"].value.values())


def test_sliding_windows(windowed_answers: dict[str, Any]) -> None:
    assert windowed_answers["tree_mask_reaches_every_layer"].value["mask"] == "masks by layer type, cut to the window"
    ways = {way["way"]: way["ok"] for way in windowed_answers["rollback_restores_state"].value["ways"]}
    assert ways["recording, then crop(-n)"] is True
    assert ways["crop(-n)"] is False


def test_an_embedding_scale_is_measured(windowed_answers: dict[str, Any]) -> None:
    answer = windowed_answers["embedding_is_raw"]
    assert answer.ok is False
    assert answer.value["scale"] == pytest.approx(8.0)


def test_hidden_states_of_a_hybrid(hybrid_answers: dict[str, Any]) -> None:
    value = hybrid_answers["hidden_states_layout"].value
    assert (value["count"], value["layers"], value["holes"], value["offset"]) == (9, 8, 0, 1)
    assert value["first_is_embedding"]
    assert value["last_is_post_norm"]


def test_a_probe_that_raises_is_an_answer(attention_only: Bench) -> None:
    @probe
    def opens_the_box(bench: Bench) -> Found:
        """Is there anything in the box?

        Opens it.
        """
        raise KeyError("no box\nsecond line")

    answer = opens_the_box(attention_only)
    assert (answer.probe, answer.question, answer.ok) == ("opens_the_box", "Is there anything in the box?", False)
    assert answer.error is not None
    assert answer.error.startswith("KeyError")


def test_a_fault_that_is_too_faint_makes_no_statement(attention_only: Bench) -> None:
    noise = attention_only.noise
    assert attention_only.judge(noise, fault=1.0) is True
    assert attention_only.judge(1000 * noise, fault=1.0) is False
    assert attention_only.judge(noise, fault=2 * noise) is None
    assert attention_only.judge(float("inf"), fault=1.0) is False


def test_a_bool_mask_that_is_wrong_under_eager_stands_in_nobodys_way(hybrid_answers: dict[str, Any]) -> None:
    answer = hybrid_answers["bool_mask_is_right"]
    assert answer.ok is None
    assert "silently wrong under eager; float is right" in answer.text
