"""The contract between verify and commit, for every kind of target and every strategy that must be lossless on it."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch

import compatfix.runtime as runtime

from . import blocks, generation, tiny
from .blocks import BUSHY, CHAIN, DEEP_WITH_SIBLINGS, TREES, Session, leaves, path_to, target

# Every strategy of these goes through the whole contract; of the other kinds, the one that is chosen.
CORE = ["qwen3", "gemma3", "qwen3_5", "qwen3_5_vl", "qwen3_next", "lfm2"]
OTHER = [kind for kind in tiny.STRATEGIES if kind not in CORE]
KINDS = [*CORE, *OTHER]
CASES = [(kind, strategy) for kind in CORE for strategy in tiny.STRATEGIES[kind]]
CHOSEN = [(kind, tiny.STRATEGIES[kind][0]) for kind in OTHER]
NEXT = [(kind, strategy) for kind in OTHER for strategy in tiny.STRATEGIES[kind][1:]]


def named(value: object) -> str:
    return str(value).replace(" ", "-")


every_strategy = pytest.mark.parametrize(("kind", "strategy"), [*CASES, *CHOSEN], ids=named)
every_strategy_of_every_kind = pytest.mark.parametrize(("kind", "strategy"), [*CASES, *CHOSEN, *NEXT], ids=named)
every_kind = pytest.mark.parametrize("kind", KINDS)


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=blocks.TOLERANCE, atol=blocks.TOLERANCE)


@every_kind
def test_the_cheapest_lossless_strategy_is_chosen(kind: str) -> None:
    assert runtime.describe(target(kind))["strategy"] == tiny.STRATEGIES[kind][0]


@every_strategy
def test_prefill_is_transparent_and_records_nothing(kind: str, strategy: str) -> None:
    session = Session(target(kind, strategy))
    assert_close(session.prefill.logits[0], tiny.full_logits(session.model, session.prompt[0].tolist()))
    session.assert_holds([])
    with pytest.raises(runtime.RuntimeRefusal, match="nothing to commit"):
        runtime.commit(session.cache, [0])


@every_strategy_of_every_kind
@pytest.mark.parametrize("tree", TREES)
def test_node_logits_are_those_of_a_plain_forward_over_the_root_path(kind: str, strategy: str, tree: str) -> None:
    parents = TREES[tree]
    session, ids = Session(target(kind, strategy)), tiny.tokens(len(parents))
    output = session.verify(ids, parents, output_hidden_states=True)
    assert session.cache.get_seq_length() == session.start + len(parents)
    assert output.hidden_states[-1].shape[:2] == (1, len(parents))
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        assert_close(output.logits[0, path], plain[-len(path) :])


@every_strategy_of_every_kind
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("share", [1.0, 0.5, 0.0], ids=["whole", "half", "root"])
def test_commit_leaves_the_cache_of_plain_decoding(kind: str, strategy: str, tree: str, share: float) -> None:
    parents = TREES[tree]
    session, ids = Session(target(kind, strategy)), tiny.tokens(len(parents))
    session.verify(ids, parents)
    path = path_to(parents, leaves(parents)[-1])
    path = path[: max(1, round(share * len(path)))]
    runtime.commit(session.cache, torch.tensor(path))
    session.assert_holds([ids[node] for node in path])


@every_strategy
@pytest.mark.parametrize("kept", [0, 1, 3, 8])
def test_crop_to_reaches_every_length_of_a_chain(kind: str, strategy: str, kept: int) -> None:
    session, ids = Session(target(kind, strategy)), tiny.tokens(8)
    session.verify_chain(ids)
    runtime.crop_to(session.cache, session.start + kept)
    session.assert_holds(ids[:kept])


@every_strategy
def test_roll_back_takes_all_of_a_tree_back(kind: str, strategy: str) -> None:
    session = Session(target(kind, strategy))
    session.verify(tiny.tokens(len(BUSHY)), BUSHY)
    runtime.roll_back(session.cache, len(BUSHY))
    session.assert_holds([])


@every_strategy
def test_blocks_follow_one_another(kind: str, strategy: str) -> None:
    session, first, second = Session(target(kind, strategy)), tiny.tokens(11, 5), tiny.tokens(11, 6)
    session.verify(first, DEEP_WITH_SIBLINGS)
    runtime.commit(session.cache, [0, 1, 4])
    output = session.verify(second, DEEP_WITH_SIBLINGS)
    committed = [*session.prompt[0].tolist(), first[0], first[1], first[4]]
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    plain = tiny.full_logits(session.model, committed + [second[node] for node in path])
    assert_close(output.logits[0, path], plain[-len(path) :])
    runtime.commit(session.cache, path[:3])
    session.assert_holds([first[0], first[1], first[4], *(second[node] for node in path[:3])])


@every_kind
def test_a_block_of_one_token_can_be_kept_and_taken_back(kind: str) -> None:
    session, ids = Session(target(kind)), tiny.tokens(2)
    for _ in range(2):
        output = session.verify([ids[0]], (-1,))
        plain = tiny.full_logits(session.model, [*session.prompt[0].tolist(), ids[0]])
        assert_close(output.logits[0, -1], plain[-1])
        runtime.crop_to(session.cache, session.start)
        session.assert_holds([])
    session.verify_chain([ids[0]])
    runtime.commit(session.cache, [0])
    session.verify_chain([ids[1]])
    session.verify_chain([ids[0]])  # the pending token is kept
    session.assert_holds([ids[0], ids[1], ids[0]])


@every_kind
def test_a_chain_shaped_tree_gives_the_result_of_the_chain(kind: str) -> None:
    ids, tree, chain = tiny.tokens(8), Session(target(kind)), Session(target(kind))
    assert torch.equal(tree.verify(ids, CHAIN).logits, chain.verify_chain(ids).logits)
    runtime.commit(tree.cache, [0, 1, 2])
    runtime.crop_to(chain.cache, chain.start + 3)
    blocks.assert_same_tensors(tree.cache, chain.cache, tolerance=0)


@every_kind
@pytest.mark.parametrize("prompt_length", [1, 2, 3])
def test_prompts_shorter_than_the_conv_kernel(kind: str, prompt_length: int) -> None:
    session, ids = Session(target(kind), prompt_length), tiny.tokens(11)
    output = session.verify(ids, DEEP_WITH_SIBLINGS)
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
    assert_close(output.logits[0, path], plain[-len(path) :])
    runtime.commit(session.cache, path[:2])
    session.assert_holds([ids[node] for node in path[:2]])


@every_kind
def test_a_new_verify_keeps_a_pending_chain_and_refuses_a_pending_tree(kind: str) -> None:
    session, ids = Session(target(kind)), tiny.tokens(11)
    session.verify_chain(ids[:3])
    session.verify_chain(ids[3:5])
    runtime.roll_back(session.cache, 1)
    session.assert_holds(ids[:4])
    session.verify(ids, DEEP_WITH_SIBLINGS)
    with pytest.raises(runtime.RuntimeRefusal, match="still pending"):
        session.verify_chain(ids[:2])
    runtime.commit(session.cache, [0])
    session.assert_holds([*ids[:4], ids[0]])


@every_strategy
@pytest.mark.parametrize("size", [1, 11])
def test_an_exception_in_the_forward_puts_the_cache_back(kind: str, strategy: str, size: int) -> None:
    session, ids = Session(target(kind, strategy)), tiny.tokens(11)
    before = blocks.copied(session.cache)
    (last,) = [m[-1] for name, m in session.model.named_modules() if name.endswith("layers")]

    def fail(*_: Any) -> None:
        raise ValueError("planted")

    handle = last.register_forward_hook(fail)
    try:
        with pytest.raises(ValueError, match="planted"):
            session.verify(ids[:size], DEEP_WITH_SIBLINGS[:size])
    finally:
        handle.remove()
    after = tiny.tensors(session.cache)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    session.verify(ids, DEEP_WITH_SIBLINGS)
    runtime.commit(session.cache, [0, 2])
    session.assert_holds([ids[0], ids[2]])


@every_strategy
def test_modules_and_library_are_left_as_found(kind: str, strategy: str) -> None:
    session = Session(target(kind, strategy))

    def attributes() -> dict[Any, Any]:
        library = vars(sys.modules[type(session.model).__module__])
        own = {(name, key): id(value) for name, m in session.model.named_modules() for key, value in vars(m).items()}
        return own | {("library", key): id(value) for key, value in library.items()}

    before = attributes()
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    assert attributes() == before
    runtime.commit(session.cache, [0, 1])
    assert attributes() == before


@every_kind
def test_generations_interleaved_on_one_model_do_not_disturb_each_other(kind: str) -> None:
    one, two = Session(target(kind), 9, seed=1), Session(target(kind), 14, seed=2)
    ids, other = tiny.tokens(11, 7), tiny.tokens(24, 8)
    one.verify(ids, DEEP_WITH_SIBLINGS)
    two.verify(other, BUSHY)
    runtime.commit(one.cache, [0, 2])
    runtime.commit(two.cache, [0, 1, 5, 12])
    one.assert_holds([ids[0], ids[2]])
    two.assert_holds([other[0], other[1], other[5], other[12]])


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_next", "gemma3"])
def test_threads_on_one_model_and_on_another_do_not_disturb_each_other(kind: str) -> None:
    models = [target(kind), target(kind), tiny.shared(kind)]
    failures: list[BaseException] = []

    def generation(model: Any, seed: int) -> None:
        try:
            ids = tiny.tokens(11, seed)
            for _ in range(3):
                session = Session(model, 8 + seed, seed)
                session.verify(ids, DEEP_WITH_SIBLINGS)
                runtime.commit(session.cache, [0, 1, 4])
                session.assert_holds([ids[0], ids[1], ids[4]])  # plain decoding while others verify
        except BaseException as error:
            failures.append(error)

    runtime.prepare(models[-1])
    threads = [threading.Thread(target=generation, args=(model, seed)) for seed, model in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@every_strategy
def test_a_whole_greedy_generation_equals_plain_greedy(kind: str, strategy: str) -> None:
    session = Session(target(kind, strategy), 10, seed=3)
    truth = tiny.greedy(session.model, session.prompt, 32)
    outcome = generation.generate(session, truth, 24, budget=10, checks=0)
    assert outcome.text == truth[:24]
    assert outcome.rejected_at_once and outcome.accepted_in_part and outcome.accepted_whole
