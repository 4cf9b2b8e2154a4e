"""Only the hidden states that somebody reads are kept, at their places, and they are those of a plain forward."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch._dynamo

import compatfix.runtime as runtime

from . import tiny
from .blocks import DEEP_WITH_SIBLINGS, TOLERANCE, Session, path_to, target

# Layers that return a tuple (falcon_h1), a text model below another (qwen3_5_vl), scaled embeddings (gemma3).
CASES = [
    ("qwen3", "mask"),
    ("qwen3", "paths"),
    ("qwen3", "steps"),
    ("gemma3", "mask"),
    ("qwen3_5", "gated-delta tree"),
    ("qwen3_5", "mixer levels"),
    ("qwen3_5", "paths"),
    ("qwen3_5", "steps"),
    ("qwen3_5_vl", None),
    ("lfm2", None),
    ("falcon_h1", "mixer levels"),
    ("jamba", "mixer levels"),
]
every_way = pytest.mark.parametrize(("kind", "strategy"), CASES, ids=lambda value: str(value).replace(" ", "-"))

Consumer = Callable[[Sequence[torch.Tensor]], object]


def second_and_last(states: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([states[index + 1] for index in (0, -2)], dim=-1)


def plain(model: Any, ids: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """All hidden states of a plain forward without any cache."""
    with torch.inference_mode():
        states: tuple[torch.Tensor, ...] = model(
            torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True
        ).hidden_states
    return states


def prefill(model: Any, ids: torch.Tensor, asked: Any, cache: Any = None, **extra: Any) -> Any:
    with torch.inference_mode():
        cache = runtime.new_cache(model) if cache is None else cache
        return runtime.verify(model, ids, past_key_values=cache, use_cache=True, output_hidden_states=asked, **extra)


def places(states: Sequence[torch.Tensor | None]) -> list[int]:
    return [index for index, state in enumerate(states) if state is not None]


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


# -- what stays as it is


@pytest.mark.parametrize("asked", [False, None])
def test_nothing_is_captured_where_nothing_is_asked_for(asked: Any) -> None:
    assert prefill(target("qwen3"), tiny.prompt(5), asked).hidden_states is None


def test_a_flag_gives_every_entry() -> None:
    model, ids = target("qwen3"), tiny.prompt(5)
    states = prefill(model, ids, True).hidden_states
    for one, other in zip(states, plain(model, ids[0].tolist()), strict=True):
        assert_close(one, other)


def test_the_consumer_is_not_asked_where_hidden_states_are_switched_off() -> None:
    def unwanted(states: Sequence[torch.Tensor]) -> object:
        raise AssertionError("called")

    block_size = 1
    asked = block_size > 1 and runtime.used_by(unwanted)
    assert prefill(target("qwen3"), tiny.prompt(5), asked).hidden_states is None


def test_a_plain_forward_takes_it_for_every_entry() -> None:
    model, ids = target("qwen3"), tiny.prompt(5)
    with torch.inference_mode():
        states = model(ids, output_hidden_states=runtime.used_by(second_and_last)).hidden_states
    assert places(states) == list(range(len(states)))


@every_way
def test_modules_are_left_as_found(kind: str, strategy: str | None) -> None:
    session, asked = Session(target(kind, strategy)), runtime.used_by(second_and_last)
    prefill(session.model, session.prompt, asked)  # the library installs its own hooks at the first request

    def attributes() -> dict[Any, Any]:
        return {
            (name, key): id(value)
            for name, module in session.model.named_modules()
            for key, value in vars(module).items()
        }

    before = attributes()
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS, output_hidden_states=asked)
    assert attributes() == before


# -- what is kept


@every_way
def test_a_prefill_keeps_what_is_read(kind: str, strategy: str | None) -> None:
    model, ids = target(kind, strategy), tiny.prompt(9)
    states = prefill(model, ids, runtime.used_by(second_and_last)).hidden_states
    expected = plain(model, ids[0].tolist())
    assert len(states) == len(expected)
    assert places(states) == [1, len(expected) - 1]
    for index in places(states):
        assert_close(states[index], expected[index])


@every_way
def test_a_tree_keeps_what_is_read_in_the_order_of_its_nodes(kind: str, strategy: str | None) -> None:
    session, ids = Session(target(kind, strategy)), tiny.tokens(11)
    states = session.verify(
        ids, DEEP_WITH_SIBLINGS, output_hidden_states=runtime.used_by(second_and_last)
    ).hidden_states
    assert places(states) == [1, len(states) - 1]
    for leaf in (4, 10):
        path = path_to(DEEP_WITH_SIBLINGS, leaf)
        expected = plain(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        assert len(states) == len(expected)
        for index in places(states):
            assert_close(states[index][0, path], expected[index][0, -len(path) :])
    runtime.commit(session.cache, [0, 1])
    session.assert_holds(ids[:2])


@every_way
@pytest.mark.parametrize("size", [1, 4])
def test_a_chain_keeps_what_is_read(kind: str, strategy: str | None, size: int) -> None:
    session, ids = Session(target(kind, strategy)), tiny.tokens(size)
    states = prefill(session.model, torch.tensor([ids]), runtime.used_by(second_and_last), session.cache).hidden_states
    expected = plain(session.model, session.prompt[0].tolist() + ids)
    assert places(states) == [1, len(expected) - 1]
    for index in places(states):
        assert_close(states[index], expected[index][:, -size:])
    runtime.crop_to(session.cache, session.start + 1)
    session.assert_holds(ids[:1])


@pytest.mark.parametrize("kind", ["qwen3", "gemma3", "qwen3_5_vl"])
def test_embeddings_in_the_place_of_tokens(kind: str) -> None:
    model, ids = target(kind), tiny.prompt(7)
    cache = runtime.new_cache(model)
    with torch.inference_mode():
        embedded = runtime.input_embeddings(model)(ids)
        states = runtime.verify(
            model, inputs_embeds=embedded, past_key_values=cache, output_hidden_states=runtime.used_by([0, 1])
        ).hidden_states
        expected = model(inputs_embeds=embedded, use_cache=False, output_hidden_states=True).hidden_states
    assert places(states) == [0, 1]
    for index in (0, 1):
        assert_close(states[index], expected[index])


READ: dict[str, tuple[Any, set[int]]] = {  # of four entries
    "an index": (lambda states: states[2], {2}),
    "from the end": (lambda states: states[-1] + states[-3], {1, 3}),
    "indices themselves": ([0, -1], {0, 3}),
    "a slice": (lambda states: torch.cat(states[1:3]), {1, 2}),
    "through the runtime": (lambda states: runtime.hidden_state(states, 3), {3}),
    "an index that is a tensor": (lambda states: states[torch.tensor(1)], {1}),
    "the width of an entry": (lambda states: torch.zeros(states[1].shape[-1]) @ states[1][0, 0], {1}),
    "iteration": (lambda states: [state.shape for state in states], {0, 1, 2, 3}),
    "a copy": (lambda states: torch.stack(tuple(states)), {0, 1, 2, 3}),
    "an index out of range": (lambda states: states[4], {0, 1, 2, 3}),
    "what a stand-in cannot do": (lambda states: torch.stack(states), {0, 1, 2, 3}),
    "nothing": (lambda states: None, set()),
}


@pytest.mark.parametrize("case", READ)
def test_what_a_consumer_reads_is_what_is_kept(case: str) -> None:
    consumer, expected = READ[case]
    states = prefill(target("qwen3"), tiny.prompt(5), runtime.used_by(consumer)).hidden_states
    assert len(states) == 4
    assert set(places(states)) == expected


def test_reading_another_entry_is_refused() -> None:
    states = prefill(target("qwen3"), tiny.prompt(5), runtime.used_by([1])).hidden_states
    with pytest.raises(runtime.RuntimeRefusal, match="hidden state 2 is missing"):
        runtime.hidden_state(states, 2)


# -- what it costs


def stored(output: Any) -> int:
    """Bytes of the storages that an output's hidden states keep alive, each counted once."""
    storages = {
        s.untyped_storage().data_ptr(): s.untyped_storage().nbytes() for s in output.hidden_states if s is not None
    }
    return sum(storages.values())


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5", "falcon_h1"])
def test_memory_after_and_during_a_prefill(kind: str) -> None:
    model, ids = tiny.build(kind), tiny.prompt(300)
    entry = 300 * tiny.HIDDEN * 4
    layers = len(model.model.layers)
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def remember(module: Any, args: Any, output: Any) -> None:
        made.append(weakref.ref(output[0] if isinstance(output, tuple) else output))

    def count(module: Any, args: Any) -> None:
        alive.append(sum(state() is not None for state in made))
        made.clear()

    prefill(model, ids[:, :4], runtime.used_by([1]))  # what is measured once is no part of this
    handles = [layer.register_forward_hook(remember) for layer in model.model.layers]
    norm = next(module for name, module in model.model.named_children() if name in ("norm", "final_layernorm"))
    handles.append(norm.register_forward_pre_hook(count))
    try:
        every = stored(prefill(model, ids, True))
        gc.collect()
        needed = stored(prefill(model, ids, runtime.used_by([1])))
    finally:
        for handle in handles:
            handle.remove()
    assert every == (layers + 1) * entry
    assert needed == entry
    # When the final norm begins: every layer's output, or the one that is read and the last, which the norm is given.
    assert alive == [layers, min(2, layers)]


def test_one_forward_of_the_target_is_enough() -> None:
    session, count = Session(target("qwen3_5")), 0

    def counting(*_: Any) -> None:
        nonlocal count
        count += 1

    asked = runtime.used_by(second_and_last)
    prefill(session.model, session.prompt, asked)
    handle = session.model.register_forward_pre_hook(counting)
    try:
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS, output_hidden_states=asked)
    finally:
        handle.remove()
    assert count == 1


# -- what cannot be captured


class Scaled(torch.nn.Module):
    """Hidden states that no module of the target makes: they are scaled on the way out."""

    def __init__(self) -> None:
        super().__init__()
        self.module = tiny.build("qwen3")
        self.config = self.module.config

    def get_input_embeddings(self) -> Any:
        return self.module.get_input_embeddings()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.module(*args, **kwargs)
        if output.hidden_states is not None:
            output.hidden_states = tuple(2 * state for state in output.hidden_states)
        return output


class Detour(Scaled):
    """Blocks of more than three tokens run through a twin of the model that was watched."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = deepcopy(self.module)

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None, **kwargs: Any) -> Any:
        model = self.module if input_ids.shape[1] <= 3 else self.twin
        return model(input_ids, past_key_values=past_key_values, **kwargs)


@pytest.mark.parametrize(("make", "factor"), [(Scaled, 2), (Detour, 1)])
def test_what_is_made_nowhere_or_elsewhere_comes_through_the_output(make: Any, factor: int) -> None:
    model, ids = make(), tiny.prompt(9)
    cache = runtime.new_cache(model)
    expected = plain(model.module, ids[0].tolist())
    for _ in range(2):
        states = prefill(model, ids, runtime.used_by([2]), cache).hidden_states
        assert places(states) == [2] and len(states) == 4
        assert_close(states[2], factor * expected[2])
        assert cache.get_seq_length() == 9
        runtime.crop_to(cache, 0)


def test_a_capture_that_fails_is_told_once_and_leaves_the_cache_right(caplog: pytest.LogCaptureFixture) -> None:
    model = Detour()
    session, ids = Session(model), tiny.tokens(11)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            output = session.verify(ids, DEEP_WITH_SIBLINGS, output_hidden_states=runtime.used_by([1]))
            runtime.crop_to(session.cache, session.start)
    assert len([r for r in caplog.records if "not made where they had been seen" in r.getMessage()]) == 1
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    expected = plain(model.module, session.prompt[0].tolist() + [ids[node] for node in path])
    assert_close(output.hidden_states[1][0, path], expected[1][0, -len(path) :])
    session.model = model.module
    session.assert_holds([])


def test_tuples_keep_everything() -> None:
    model, ids = target("qwen3"), tiny.prompt(5)
    output = prefill(model, ids, runtime.used_by([1]), return_dict=False)
    expected = plain(model, ids[0].tolist())
    states = next(part for part in output if isinstance(part, tuple))
    assert len(states) == len(expected)
    for one, other in zip(states, expected, strict=True):
        assert_close(one, other)


def test_compiled_targets_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "disable", True)  # a wrapper that compiles nothing
    inner, ids = tiny.build("qwen3"), tiny.prompt(9)
    model = torch.compile(inner)
    forwards: list[bool] = []
    inner.model.layers[0].register_forward_hook(lambda module, *_: forwards.append("forward" in vars(module)))
    states = prefill(model, ids, runtime.used_by([1])).hidden_states
    assert places(states) == [1]
    assert_close(states[1], plain(inner, ids[0].tolist())[1])
    assert forwards and not any(forwards)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5"])
def test_an_exception_in_the_forward_puts_everything_back(kind: str) -> None:
    session, ids = Session(target(kind)), tiny.tokens(11)
    asked = runtime.used_by(second_and_last)
    prefill(session.model, session.prompt, asked)

    def fail(*_: Any) -> None:
        raise ValueError("planted")

    handle = session.model.model.layers[-1].mlp.register_forward_pre_hook(fail)
    try:
        with pytest.raises(ValueError, match="planted"):
            session.verify(ids, DEEP_WITH_SIBLINGS, output_hidden_states=asked)
    finally:
        handle.remove()
    session.assert_holds([])
    assert all("forward" not in vars(module) for module in session.model.modules())


def test_plain_decoding_in_another_thread_is_not_taken_for_the_block() -> None:
    session, ids = Session(target("qwen3")), tiny.tokens(11)
    asked = runtime.used_by([1, 2])
    prefill(session.model, session.prompt, asked)
    other = tiny.prompt(11, seed=9)
    threads: list[threading.Thread] = []

    def elsewhere(*_: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=tiny.full_logits, args=(session.model, other[0].tolist())))
            threads[0].start()
            threads[0].join()

    handle = session.model.model.layers[2].register_forward_pre_hook(elsewhere)
    try:
        states = session.verify(ids, DEEP_WITH_SIBLINGS, output_hidden_states=asked).hidden_states
    finally:
        handle.remove()
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    expected = plain(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
    for index in (1, 2):
        assert_close(states[index][0, path], expected[index][0, -len(path) :])
