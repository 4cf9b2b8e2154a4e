"""States held during a verify stay below a limit, and what is verified and committed stays exact."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import pytest
import torch

import compatfix.runtime as runtime

from . import blocks, tiny
from .blocks import BUSHY, CHAIN, DEEP_WITH_SIBLINGS, Session, leaves, path_to, target

MIXERS = {"qwen3_5": "linear_attn", "jamba": "mamba", "falcon_h1": "mamba"}
every_kind = pytest.mark.parametrize("kind", list(MIXERS))
# BUSHY has six depths of 1, 3, 6, 8, 4, 2 nodes: 7 states at least, 6 + 1 with rows of one node.
LEAST, ALL_OF_A_LAYER = 7, 24 + 8


def state_tensors(cache: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tiny.tensors(cache).items() if "states" in name}


def bytes_of_a_state(cache: Any) -> int:
    """Of one layer; all of them are alike in these models."""
    sizes: dict[str, int] = {}
    for name, tensor in state_tensors(cache).items():
        layer = name.partition(".")[0]
        sizes[layer] = sizes.get(layer, 0) + tensor.numel() * tensor.element_size()
    assert len(set(sizes.values())) == 1
    return max(sizes.values())


@cache
def limited(kind: str, states: int) -> tuple[Any, int]:
    """A target with room for that many states of a layer, and the limit in bytes."""
    model = target(kind, "mixer levels") if states == 0 else tiny.build(kind)
    size = bytes_of_a_state(Session(tiny.shared(kind)).cache)
    if states:
        runtime.prepare(model, "mixer levels", memory_limit=states * size)
    return model, states * size


class Watch:
    """The bytes of states that anybody holds, the committed ones aside, seen at each call of each mixer."""

    def __init__(self, session: Session, kind: str) -> None:
        self.cache, self.peak = session.cache, 0
        self.committed = {tensor.data_ptr() for tensor in state_tensors(session.cache).values()}
        self.seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self.mixers = [
            getattr(layer, MIXERS[kind]) for layer in session.model.model.layers if hasattr(layer, MIXERS[kind])
        ]

    def __enter__(self) -> Watch:
        for mixer in self.mixers:
            mixer.forward = self.watching(mixer.forward)
        return self

    def __exit__(self, *_: object) -> None:
        for mixer in self.mixers:
            del mixer.forward

    def watching(self, original: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.look()
            result = original(*args, **kwargs)
            self.look()
            return result

        return forward

    def look(self) -> None:
        self.seen.update({id(tensor): weakref.ref(tensor) for tensor in state_tensors(self.cache).values()})
        self.peak = max(self.peak, self.held())

    def held(self) -> int:
        living = [tensor for tensor in (seen() for seen in self.seen.values()) if tensor is not None]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in living}
        return sum(size for pointer, size in storages.items() if pointer not in self.committed)


@every_kind
@pytest.mark.parametrize("states", [LEAST, 10, ALL_OF_A_LAYER])
def test_states_stay_below_the_limit_and_nodes_and_commits_are_exact(kind: str, states: int) -> None:
    model, limit = limited(kind, states)
    session, ids = Session(model), tiny.tokens(len(BUSHY))
    with Watch(session, kind) as watch:
        output = session.verify(ids, BUSHY)
    assert 0 < watch.peak <= limit
    assert watch.held() == 0
    for leaf in leaves(BUSHY):
        path = path_to(BUSHY, leaf)
        plain = tiny.full_logits(model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)
    path = path_to(BUSHY, 23)
    runtime.commit(session.cache, path)
    session.assert_holds([ids[node] for node in path])


@every_kind
def test_without_a_limit_the_states_of_all_nodes_are_held(kind: str) -> None:
    model, _ = limited(kind, 0)
    session = Session(model)
    with Watch(session, kind) as watch:
        session.verify(tiny.tokens(len(BUSHY)), BUSHY)
    assert watch.held() == len(watch.mixers) * len(BUSHY) * bytes_of_a_state(session.cache)


@every_kind
@pytest.mark.parametrize("kept", [[0, 1, 4, 10, 14, 21], [0, 2], []], ids=["whole", "part", "none"])
def test_any_part_of_a_path_can_be_kept_and_the_next_block_follows(kind: str, kept: list[int]) -> None:
    parents = (-1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 10, 7, 8, 9, 10, 10, 12, 14, 15, 18)
    session, ids = Session(limited(kind, 10)[0]), tiny.tokens(24)
    session.verify(ids, parents)
    if kept:
        runtime.commit(session.cache, kept)
    else:
        runtime.crop_to(session.cache, session.start)
    session.assert_holds([ids[node] for node in kept])
    output = session.verify(ids, BUSHY)
    path, committed = path_to(BUSHY, 23), session.prompt[0].tolist() + [ids[node] for node in kept]
    plain = tiny.full_logits(session.model, committed + [ids[node] for node in path])
    torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kept", [0, 1, 5, 8])
def test_chains_can_be_cropped_to_every_length(kept: int) -> None:
    session, ids = Session(limited("jamba", 10)[0]), tiny.tokens(8)
    with Watch(session, "jamba") as watch:
        session.verify_chain(ids)
    assert watch.held() == 0
    runtime.crop_to(session.cache, session.start + kept)
    session.assert_holds(ids[:kept])


def test_a_commit_takes_each_mixer_along_the_path_and_the_target_not_at_all() -> None:
    model, _ = limited("jamba", 10)
    session, forwards = Session(model), []
    session.verify(tiny.tokens(24), BUSHY)
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with Watch(session, "jamba") as watch:
        calls: list[int] = []
        watch.look = lambda: calls.append(1)  # type: ignore[method-assign]
        runtime.commit(session.cache, [0, 1, 4])
    handle.remove()
    assert forwards == []
    assert len(calls) == 2 * 2 * 3  # before and after, two mixers, three nodes


def test_an_exception_in_a_mixer_leaves_the_block_pending() -> None:
    model, _ = limited("jamba", 10)
    session, ids = Session(model), tiny.tokens(24)
    session.verify(ids, BUSHY)
    before, mixer = blocks.copied(session.cache), model.model.layers[2].mamba

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("planted")

    mixer.forward = fail
    with pytest.raises(ValueError, match="planted"):
        runtime.commit(session.cache, [0, 2, 6])
    del mixer.forward
    after = tiny.tensors(session.cache)
    assert all(torch.equal(before[name], after[name]) for name in before)
    runtime.commit(session.cache, [0, 2, 6])
    session.assert_holds([ids[node] for node in (0, 2, 6)])


def test_both_ways_through_a_tree_are_measured_before_either_is_used() -> None:
    """A mixer that loses its state when it is called outside a forward of the target serves one way only."""
    model, inside = tiny.build("jamba"), []
    model.register_forward_pre_hook(lambda *_: inside.append(1))
    model.register_forward_hook(lambda *_: inside.clear())
    mixer = model.model.layers[0].mamba
    original = mixer.forward

    def forward(hidden_states: torch.Tensor, cache: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = original(hidden_states, cache, *args, **kwargs)
        if not inside:
            cache.layers[0].recurrent_states[0].zero_()
        return output

    mixer.forward = forward
    assert runtime.prepare(model, "mixer levels")["strategy"] == "mixer levels"
    with pytest.raises(runtime.RuntimeRefusal, match=r"mixer levels: error e = .* exceeds 4n"):
        runtime.prepare(model, "mixer levels", memory_limit=10**9)


@pytest.mark.parametrize("kind", ["jamba", "qwen3_5"])
def test_a_block_that_cannot_stay_below_is_refused_with_numbers_and_changes_nothing(kind: str) -> None:
    model, limit = limited(kind, LEAST - 1)
    session, ids = Session(model), tiny.tokens(24)
    before = blocks.copied(session.cache)
    size = bytes_of_a_state(session.cache)
    with pytest.raises(runtime.RuntimeRefusal, match=rf"6 depths needs {LEAST * size} bytes.*the limit is {limit}:"):
        session.verify(ids, BUSHY)
    after = tiny.tensors(session.cache)
    assert all(torch.equal(before[name], after[name]) for name in before)
    session.verify(ids[:4], (-1, 0, 0, 1))  # a shallower tree fits
    runtime.commit(session.cache, [0, 2])
    session.assert_holds([ids[0], ids[2]])


@pytest.mark.parametrize(("strategy", "limit"), [("paths", 200_000), ("steps", 300_000)])
def test_strategies_that_hold_a_state_per_leaf_or_node_refuse_what_is_over_the_limit(strategy: str, limit: int) -> None:
    model = tiny.build("qwen3_5")
    runtime.prepare(model, strategy, memory_limit=limit)
    session, ids = Session(model), tiny.tokens(24)
    before = blocks.copied(session.cache)
    with pytest.raises(runtime.RuntimeRefusal, match=rf"{strategy} would hold \d+ bytes .* limit is {limit}:"):
        session.verify(ids, BUSHY)
    after = tiny.tensors(session.cache)
    assert all(torch.equal(before[name], after[name]) for name in before)
    session.verify(ids[:3], (-1, 0, 0))
    runtime.commit(session.cache, [0, 2])
    session.assert_holds([ids[0], ids[2]])


def test_tree_forms_hold_no_state_and_know_no_limit() -> None:
    model = tiny.build("qwen3_5")
    assert runtime.prepare(model, memory_limit=1)["strategy"] == "gated-delta tree"
    session, ids = Session(model), tiny.tokens(8)
    session.verify(ids, CHAIN)
    runtime.commit(session.cache, [0, 1])
    session.assert_holds(ids[:2])


def test_the_limit_is_told_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("jamba")
    assert runtime.prepare(model)["memory_limit"] is None
    assert runtime.prepare(model, memory_limit=180_000)["memory_limit"] == 180_000
    assert runtime.prepare(model)["memory_limit"] == 180_000
    assert runtime.prepare(model, "steps")["memory_limit"] == 180_000
    assert runtime.prepare(model, memory_limit=190_000)["strategy"] == "steps"  # as was asked for before
    monkeypatch.setenv("COMPATFIX_STATE_BYTES", "80000")
    assert runtime.prepare(tiny.build("jamba"))["memory_limit"] == 80_000
    assert runtime.prepare(tiny.build("jamba"), memory_limit=180_000)["memory_limit"] == 180_000


@pytest.mark.parametrize("told", ["12GB", "-5", "0", "1.5"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPATFIX_STATE_BYTES", told)
    with pytest.raises(runtime.RuntimeRefusal, match="COMPATFIX_STATE_BYTES"):
        runtime.prepare(tiny.build("jamba"))


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(runtime.RuntimeRefusal, match="leaves no room"):
        runtime.prepare(tiny.build("jamba"), memory_limit=0)


def test_no_strategy_is_left_where_not_even_the_measurement_fits() -> None:
    with pytest.raises(runtime.RuntimeRefusal, match=r"mixer levels: .*the limit is 20000.*steps would hold"):
        runtime.prepare(tiny.build("jamba"), memory_limit=20_000)


def test_deep_trees_keep_one_row_of_each_depth() -> None:
    session, ids = Session(limited("falcon_h1", 7)[0]), tiny.tokens(11)
    with Watch(session, "falcon_h1") as watch:
        session.verify(ids, DEEP_WITH_SIBLINGS)
    assert watch.peak <= 7 * bytes_of_a_state(session.cache)
    runtime.commit(session.cache, [0, 1, 3, 5, 7, 10])
    session.assert_holds([ids[node] for node in (0, 1, 3, 5, 7, 10)])
