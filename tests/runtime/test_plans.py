"""Measuring and choosing a strategy: forced, refused, kept, told."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import compatfix.runtime as runtime
from compatfix.runtime.strategies import Record
from compatfix.runtime.strategies.forms import FormsRecord
from compatfix.runtime.strategies.paths import Rows
from compatfix.runtime.trees import Tree

from . import tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, target


def test_a_description_is_plain_data_with_the_numbers() -> None:
    description = json.loads(json.dumps(runtime.describe(target("qwen3_5"))))
    assert description["strategy"] == "gated-delta tree"
    assert description["dtype"] == "float32"
    assert description["stateful_layers"] == [0, 1, 3]
    mask, chosen = description["trials"]
    assert not mask["accepted"] and "states that 3 layers keep" in mask["reason"]
    assert chosen["error"] <= 4 * max(description["noise"], description["noise_floor"])
    assert chosen["error"] <= description["fault"] / 8


def test_nothing_is_known_before_it_was_measured() -> None:
    assert runtime.describe(tiny.build("qwen3")) == {"measured": False, "strategy": None}


def test_one_measurement_and_one_line_per_model(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny.build("qwen3")
    with caplog.at_level(logging.INFO):
        session = Session(model)
        assert not runtime.describe(model)["measured"]  # a prefill needs no strategy
        for _ in range(2):
            session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
            runtime.commit(session.cache, [0])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and "verifying by 'mask'" in lines[0]


def test_the_environment_and_the_argument_force_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("qwen3_5")
    monkeypatch.setenv("COMPATFIX_STRATEGY", "mixer levels")
    assert runtime.prepare(model)["strategy"] == "mixer levels"
    assert runtime.prepare(model, "steps")["strategy"] == "steps"
    session = Session(model)
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    assert runtime.describe(model)["strategy"] == "steps"


def test_a_forced_strategy_is_still_measured() -> None:
    model = tiny.build("qwen3_5")
    with pytest.raises(runtime.RuntimeRefusal, match="a mask does not reach the states"):
        runtime.prepare(model, "mask")
    with pytest.raises(runtime.RuntimeRefusal, match="no verification strategy is called 'fastest'"):
        runtime.prepare(model, "fastest")


def test_a_faulty_strategy_is_measured_and_the_next_one_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FormsRecord, "keep_states", Record.keep_states)  # states not moved at a commit
    description = runtime.prepare(tiny.build("qwen3_5"))
    assert description["strategy"] == "mixer levels"
    assert "exceeds 4n" in description["trials"][1]["reason"]


def test_a_fault_in_commits_of_the_deepest_path_alone_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Rows.of

    def swapped(tree: Tree) -> Rows:
        rows = of(tree)
        return replace(rows, whole={path: (row + 1) % rows.count for path, row in rows.whole.items()})

    monkeypatch.setattr(Rows, "of", swapped)
    with pytest.raises(runtime.RuntimeRefusal, match="exceeds 4n"):
        runtime.prepare(tiny.build("qwen3_5"), "paths")


def test_a_fault_in_chains_alone_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Record.keep

    def chains_stay(self: Record, cache: Any, path: Sequence[int]) -> None:
        keep(self, cache, range(1) if self.tree.is_chain else path)

    monkeypatch.setattr(Record, "keep", chains_stay)
    with pytest.raises(runtime.RuntimeRefusal, match=r"mask:.*; paths:.*; steps:"):
        runtime.prepare(tiny.build("qwen3"))


def test_a_fault_is_planted_where_there_are_no_keys() -> None:
    description = runtime.describe(target("falcon_mamba"))
    assert description["strategy"] == tiny.STRATEGIES["falcon_mamba"][0]
    assert description["fault"] > 1


def test_a_refusal_when_nothing_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("qwen3_5")
    keep = Record.keep

    def off_by_one(self: Record, cache: Any, path: Sequence[int]) -> None:
        keep(self, cache, path[:-1])

    monkeypatch.setattr(Record, "keep", off_by_one)
    session, ids = Session(model), tiny.tokens(11)
    for _ in range(2):  # kept: the second verify does not measure again
        with pytest.raises(runtime.RuntimeRefusal, match=r"no strategy agrees.*noise n = .*smallest fault f = "):
            session.verify(ids, DEEP_WITH_SIBLINGS)
        session.assert_holds([])
    assert runtime.describe(model)["strategy"] is None
    output = session.verify(ids[:1], (-1,))  # plain decoding goes on
    plain = tiny.full_logits(model, [*session.prompt[0].tolist(), ids[0]])
    torch.testing.assert_close(output.logits[0, -1], plain[-1], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5", "qwen3_next", "gemma3"])
def test_bfloat16_is_accepted_by_its_own_noise(kind: str) -> None:
    model = tiny.build(kind, torch.bfloat16)
    description = runtime.prepare(model)
    assert description["dtype"] == "bfloat16"
    assert description["strategy"] == tiny.STRATEGIES[kind][0]
    session, ids = Session(model), tiny.tokens(11)
    output = session.verify(ids, DEEP_WITH_SIBLINGS)
    plain = tiny.full_logits(model, [*session.prompt[0].tolist(), ids[0], ids[2]])
    assert float((output.logits[0, 2] - plain[-1]).abs().max()) < description["fault"] / 4
    runtime.commit(session.cache, [0, 2])
    expected = tiny.tensors(tiny.decoded(model, session.prompt, [ids[0], ids[2]]))
    for name, tensor in tiny.tensors(session.cache).items():
        assert tensor.dtype == expected[name].dtype
        torch.testing.assert_close(tensor, expected[name], rtol=0.05, atol=0.05)


def test_another_dtype_is_measured_anew() -> None:
    model = tiny.build("qwen3")
    runtime.prepare(model)
    runtime.prepare(model.to(torch.bfloat16))
    assert runtime.describe(model)["dtype"] == "bfloat16"


def test_a_measurement_leaves_no_trace_on_the_model() -> None:
    model = tiny.build("qwen3_5_vl")
    model.model.rope_deltas = torch.tensor([[-7]])  # what an image prompt left there
    before = {name: t.clone() for name, t in model.state_dict().items()}
    runtime.prepare(model)
    assert model.model.rope_deltas.tolist() == [[-7]]
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_plans_do_not_keep_models_alive() -> None:
    import gc
    import weakref

    model = tiny.build("qwen3_5")
    runtime.prepare(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(
    ("error", "fault", "floor", "accepted", "words"),
    [
        (1e-5, 0.5, 1e-6, True, ""),
        (0.2, 1.0, 1e-6, False, "exceeds 4n"),
        (0.02, 0.1, 0.001, False, "exceeds f/8"),
        # One rounding step of a bf16 logit above 16; the smallest fault is more than four of them.
        (0.125, 0.547, 0.13, True, ""),
        (0.125, 0.4, 0.13, False, "exceeds f/4"),
        (0.3, 1.3, 0.13, False, "exceeds f/8"),
    ],
)
def test_the_rule_of_acceptance(
    monkeypatch: pytest.MonkeyPatch, error: float, fault: float, floor: float, accepted: bool, words: str
) -> None:
    from compatfix.runtime import plans
    from compatfix.runtime.probe import Baseline

    class Fine:
        name = "fine"

        def obstacle(self, facts: Any) -> None:
            return None

        def forms(self, facts: Any) -> tuple[Any, ...]:
            return (self,)

    monkeypatch.setattr(plans, "error_of", lambda strategy, base: error)
    noise = 0.02 if floor < 0.01 else 0.13
    base = Baseline(reference=None, facts=None, noise=noise, noise_floor=floor, fault=fault)  # type: ignore[arg-type]
    chosen, trials = plans._try([Fine()], base)  # type: ignore[list-item]
    assert (chosen is not None) is accepted
    assert words in (trials[-1].reason or "")
