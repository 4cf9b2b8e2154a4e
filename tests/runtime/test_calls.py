"""How a call reaches the target: names of the cache, positional arguments, calls without a cache."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import compatfix.runtime as runtime

from . import tiny
from .blocks import Session, positions, target


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5", "qwen3_5_vl"])
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_the_cache_reaches_the_target_under_its_own_name_and_without_a_warning(kind: str, name: str) -> None:
    model, cache = target(kind), runtime.new_cache(target(kind))
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.verify(model, tiny.prompt(5), use_cache=True, **{name: cache})
        runtime.verify(model, torch.tensor([[3, 4]]), **{name: cache})
    assert cache.get_seq_length() == 7


def test_positional_arguments_are_named() -> None:
    model, cache = target("qwen3"), runtime.new_cache(target("qwen3"))
    with torch.inference_mode():
        runtime.verify(model, tiny.prompt(5), None, positions((-1, 0, 1, 2, 3), 0), cache)
        runtime.verify(model, torch.tensor([[3, 4]]), None, positions((-1, 0), 5), cache)
    runtime.crop_to(cache, 6)
    assert cache.get_seq_length() == 6


@pytest.mark.parametrize("count", [1, 3])
def test_positions_are_told_to_a_target_that_does_not_count_them(count: int) -> None:
    model, ids = target("bamba"), tiny.tokens(3)[:count]
    session = Session(model)
    with torch.inference_mode():
        own = tiny.own_cache(model)
        tiny.cached(model, session.prompt, own)
        left_to_it = model(torch.tensor([ids]), cache=own).logits[0]
    output = session.verify_chain(ids)
    plain = tiny.full_logits(model, session.prompt[0].tolist() + ids)[-count:]
    assert float((left_to_it - plain).abs().max()) > 0.1
    torch.testing.assert_close(output.logits[0], plain, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("wrapped", [False, True])
def test_positions_are_left_to_a_target_that_remembers_an_image_prompt(wrapped: bool) -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module, self.config = module, module.config

        def forward(self, **kwargs: Any) -> Any:
            return self.module(**kwargs)

    model = tiny.build("qwen3_5_vl")
    session, own, ids = Session(model), tiny.own_cache(model), tiny.tokens(1)
    with torch.inference_mode():
        model(session.prompt, cache=own)
        model.model.rope_deltas = torch.tensor([[40]])  # what an image prompt leaves there
        expected = model(torch.tensor([ids]), cache=own).logits[0, -1]
        target = Wrapper(model) if wrapped else model
        output = runtime.verify(target, input_ids=torch.tensor([ids]), past_key_values=session.cache).logits[0, -1]
    plain = tiny.full_logits(model, session.prompt[0].tolist() + ids)[-1]
    assert float((expected - plain).abs().max()) > 0.01
    torch.testing.assert_close(output, expected, rtol=2e-4, atol=2e-4)


def test_embeddings_can_be_passed_instead_of_ids() -> None:
    session, ids = Session(target("qwen3_5")), tiny.tokens(3)
    with torch.inference_mode():
        embedded = runtime.input_embeddings(session.model)(torch.tensor([ids]))
        output = runtime.verify(session.model, inputs_embeds=embedded, past_key_values=session.cache)
    plain = tiny.full_logits(session.model, session.prompt[0].tolist() + ids)
    torch.testing.assert_close(output.logits[0], plain[-3:], rtol=2e-4, atol=2e-4)


def test_a_call_without_a_cache_is_a_plain_forward() -> None:
    model, ids = target("qwen3"), tiny.prompt(5)
    with torch.inference_mode():
        assert torch.equal(runtime.verify(model, ids, use_cache=False).logits, model(ids, use_cache=False).logits)
        assert runtime.verify(model, ids.expand(2, -1), use_cache=False).logits.shape[0] == 2


def test_a_target_that_swallows_its_cache_is_refused() -> None:
    model = target("qwen3")

    class Swallowing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.config = model, model.config

        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
            return self.inner(input_ids, use_cache=False)

    cache = runtime.new_cache()
    with torch.inference_mode(), pytest.raises(runtime.RuntimeRefusal, match="did not use the cache"):
        runtime.verify(Swallowing(), tiny.prompt(5), past_key_values=cache)
    assert cache.get_seq_length() == 0


def test_wrapped_targets_are_called_by_the_inner_names() -> None:
    model = target("qwen3")

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.config = model, model.config

        def get_input_embeddings(self) -> Any:
            return self.module.get_input_embeddings()

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    session, ids = Session(Wrapper()), tiny.tokens(3)
    session.verify_chain(ids)
    runtime.crop_to(session.cache, session.start + 2)
    session.model = model
    session.assert_holds(ids[:2])
