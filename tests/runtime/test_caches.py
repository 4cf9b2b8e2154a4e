"""Making caches, and cutting those that hold keys and values only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import compatfix.runtime as runtime

from . import tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, assert_same_tensors, target


def filled(cache: Any, count: int = 6) -> Any:
    for layer in range(2):
        tokens = torch.arange(count, dtype=torch.float32).view(1, 1, count, 1).expand(1, 2, count, 3)
        cache.update(tokens.clone(), -tokens, layer)
    return cache


@pytest.mark.parametrize("given", ["model", "config"])
def test_window_layers_store_every_token(given: str) -> None:
    model = target("gemma3")
    cache = runtime.new_cache(model if given == "model" else model.config)
    with torch.inference_mode():
        runtime.verify(model, tiny.prompt(20), past_key_values=cache)
    assert [layer.keys.shape[-2] for layer in cache.layers] == [20, 20, 20]


def test_a_trees_own_config_built_cache_is_widened_at_the_prefill() -> None:
    model = target("gemma3")
    session = Session(model, 20)
    session.cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        runtime.verify(model, session.prompt, past_key_values=session.cache)
    ids = tiny.tokens(3)
    session.verify_chain(ids)
    runtime.roll_back(session.cache, 2)
    session.assert_holds(ids[:1])


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_vl", "qwen3_next"])
def test_a_config_is_enough(kind: str) -> None:
    model = target(kind)
    session = Session(model)
    session.cache = runtime.new_cache(model.config)
    with torch.inference_mode():
        runtime.verify(model, session.prompt, past_key_values=session.cache)
    session.assert_holds([])


def test_a_cache_that_keeps_states_only_counts_its_tokens() -> None:
    model, ids = target("falcon_mamba"), tiny.tokens(11)
    with pytest.raises(ValueError, match="only contain"):  # what the library's own cache says
        DynamicCache(config=model.config).get_seq_length()
    session = Session(model)
    assert session.cache.get_seq_length() == session.start
    session.verify(ids, DEEP_WITH_SIBLINGS)
    assert session.cache.get_seq_length() == session.start + 11
    runtime.commit(session.cache, [0, 1, 4])
    assert session.cache.get_seq_length() == session.start + 3
    session.verify_chain(ids[:4])
    runtime.roll_back(session.cache, 3)
    assert session.cache.get_seq_length() == session.start + 4


def test_a_cache_that_nobody_counted_on_is_refused() -> None:
    model = target("falcon_mamba")
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        tiny.cached(model, tiny.prompt(5), cache)
        with pytest.raises(runtime.RuntimeRefusal, match=r"does not tell how many tokens it holds.*new_cache"):
            runtime.verify(model, torch.tensor([[1, 2]]), past_key_values=cache)


@pytest.mark.parametrize("own", [False, True], ids=["new_cache", "the library's"])
def test_a_cache_whose_first_layer_holds_no_keys_tells_its_length_and_masks_chains_right(own: bool) -> None:
    model, ids = target("minimax"), tiny.tokens(5)
    cache = tiny.own_cache(model) if own else runtime.new_cache(model)
    session = Session(model)
    session.cache = cache
    with torch.inference_mode():
        runtime.verify(model, session.prompt, past_key_values=cache)
    output = session.verify_chain(ids)
    assert cache.get_seq_length() == session.start + 5
    plain = tiny.full_logits(model, session.prompt[0].tolist() + ids)
    torch.testing.assert_close(output.logits[0], plain[-5:], rtol=2e-4, atol=2e-4)


def test_nothing_given_makes_a_plain_cache() -> None:
    cache = filled(runtime.new_cache())
    assert cache.get_seq_length() == 6


@pytest.mark.parametrize("wanted", [0, 1, 5, 6])
def test_a_drafts_cache_is_cut_exactly_and_can_grow_again(wanted: int) -> None:
    cache = filled(DynamicCache())
    runtime.crop_to(cache, wanted)
    assert cache.get_seq_length() == wanted
    filled(cache, 2)
    assert cache.layers[1].keys[0, 0, :, 0].tolist() == [*range(wanted), 0, 1]


def test_nothing_to_cut() -> None:
    cache = runtime.new_cache()
    runtime.crop_to(cache, 0)
    runtime.roll_back(cache, 0)
    assert cache.get_seq_length() == 0


def test_legacy_lists_of_keys_are_cut_too() -> None:
    keys = torch.arange(6.0).view(1, 1, 6, 1)
    cache = SimpleNamespace(key_cache=[keys, None, keys], value_cache=[-keys, None, -keys], _seen_tokens=6)
    runtime.crop_to(cache, 4)
    assert [None if t is None else t.flatten().tolist() for t in cache.key_cache] == [[0, 1, 2, 3], None, [0, 1, 2, 3]]
    assert cache._seen_tokens == 4


def test_a_prefilled_attention_cache_is_cut_without_a_record() -> None:
    session = Session(target("qwen3"), 12)
    runtime.crop_to(session.cache, 7)
    assert_same_tensors(session.cache, tiny.decoded(session.model, session.prompt[:, :7], []))
