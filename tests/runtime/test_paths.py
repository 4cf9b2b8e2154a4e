"""Strategy paths: rows of unequal length, commits with and without a second forward, exceptions in that forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import compatfix.runtime as runtime
from compatfix.runtime.strategies.paths import Rows
from compatfix.runtime.trees import Tree

from . import blocks, tiny
from .blocks import BUSHY, CHAIN, DEEP_WITH_SIBLINGS, Session, leaves, path_to, target

STATEFUL = ["qwen3_5", "qwen3_5_vl", "qwen3_next", "lfm2", "falcon_h1"]


def test_each_leaf_is_a_row_and_shorter_rows_are_filled_up_at_their_end() -> None:
    rows = Rows.of(Tree((-1, 0, 0, 1, 3)))
    assert rows.nodes.tolist() == [[0, 2, 2, 2], [0, 1, 3, 4]]
    assert rows.extra.tolist() == [[0, 0, 1, 2], [0, 0, 0, 0]]
    assert rows.nodes[rows.row, rows.column].tolist() == [0, 1, 2, 3, 4]
    assert dict(rows.whole) == {(0, 1, 3, 4): 1}


@pytest.mark.parametrize("parents", [CHAIN, DEEP_WITH_SIBLINGS, BUSHY], ids=["chain", "deep", "bushy"])
def test_every_node_lies_where_its_row_and_column_say(parents: tuple[int, ...]) -> None:
    rows = Rows.of(Tree(parents))
    assert rows.count == len(leaves(parents))
    assert rows.nodes[rows.row, rows.column].tolist() == list(range(len(parents)))


def test_jamba_is_refused_because_its_multi_token_forward_drops_the_state() -> None:
    with pytest.raises(runtime.RuntimeRefusal, match=r"error e = .* exceeds 4n"):
        runtime.prepare(tiny.build("jamba"), "paths")


@pytest.mark.parametrize("kind", STATEFUL)
def test_any_prefix_of_any_path_can_be_committed(kind: str) -> None:
    ids = tiny.tokens(len(DEEP_WITH_SIBLINGS))
    for leaf in leaves(DEEP_WITH_SIBLINGS):
        path = path_to(DEEP_WITH_SIBLINGS, leaf)
        for kept in {len(path), len(path) - 1}:
            session = Session(target(kind, "paths"))
            session.verify(ids, DEEP_WITH_SIBLINGS)
            runtime.commit(session.cache, path[:kept])
            session.assert_holds([ids[node] for node in path[:kept]])


def test_nodes_are_exact_on_models_outside_the_contract_suite() -> None:
    for kind in ("lfm2", "falcon_h1"):
        session, ids = Session(target(kind, "paths")), tiny.tokens(len(BUSHY))
        output = session.verify(ids, BUSHY)
        for leaf in leaves(BUSHY):
            path = path_to(BUSHY, leaf)
            plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
            torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "path", "forwards"),
    [("qwen3_5", [0, 1, 3, 5, 7, 10], 0), ("qwen3_5", [0, 1, 4], 1), ("qwen3", [0, 1, 4], 0)],
    ids=["a longest path", "a shorter path", "no states"],
)
def test_a_commit_runs_the_target_again_only_where_a_state_is_missing(
    kind: str, path: list[int], forwards: int
) -> None:
    session, ids, calls = Session(target(kind, "paths")), tiny.tokens(11), []
    session.verify(ids, DEEP_WITH_SIBLINGS)
    handle = session.model.register_forward_pre_hook(lambda *_: calls.append(1))
    runtime.commit(session.cache, path)
    handle.remove()
    assert len(calls) == forwards
    session.assert_holds([ids[node] for node in path])


def test_an_exception_while_a_path_is_run_again_leaves_the_block_pending() -> None:
    session, ids = Session(target("qwen3_5", "paths")), tiny.tokens(11)
    session.verify(ids, DEEP_WITH_SIBLINGS)
    before = blocks.copied(session.cache)

    def fail(*_: Any) -> None:
        raise ValueError("planted")

    handle = session.model.model.layers[-1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="planted"):
        runtime.commit(session.cache, [0, 1, 4])
    handle.remove()
    after = tiny.tensors(session.cache)
    assert all(torch.equal(before[name], after[name]) for name in before)
    runtime.commit(session.cache, [0, 1, 4])
    session.assert_holds([ids[0], ids[1], ids[4]])


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5", "qwen3_5_vl", "gemma3"])
def test_the_output_is_that_of_one_forward(kind: str) -> None:
    ids = tiny.tokens(24)
    one = Session(target(kind)).verify(ids, BUSHY, output_hidden_states=True)
    output = Session(target(kind, "paths")).verify(ids, BUSHY, output_hidden_states=True)
    assert type(output) is type(one)
    assert output.keys() == one.keys()
    torch.testing.assert_close(output.logits, one.logits, rtol=2e-4, atol=2e-4)
    for ours, theirs in zip(output.hidden_states, one.hidden_states, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


def test_logits_to_keep_counts_nodes() -> None:
    ids = tiny.tokens(11)
    every = Session(target("qwen3", "paths")).verify(ids, DEEP_WITH_SIBLINGS).logits
    last = Session(target("qwen3", "paths")).verify(ids, DEEP_WITH_SIBLINGS, logits_to_keep=3).logits
    assert torch.equal(last, every[:, -3:])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_a_commit_outside_the_mode_of_the_verify(mode: Any) -> None:
    model, ids, prompt = target("qwen3_5", "paths"), tiny.tokens(11), tiny.prompt(12)
    session = Session.__new__(Session)
    session.model, session.prompt, session.start, session.cache = model, prompt, 12, runtime.new_cache(model)
    with mode():
        runtime.verify(model, prompt, past_key_values=session.cache)
        runtime.verify(
            model,
            torch.tensor([ids]),
            attention_mask=blocks.mask(DEEP_WITH_SIBLINGS, 12),
            past_key_values=session.cache,
        )
    runtime.commit(session.cache, [0, 1, 4])
    session.assert_holds([ids[0], ids[1], ids[4]])
    assert not any(tensor.requires_grad for tensor in tiny.tensors(session.cache).values())
