"""What happens past the runtime, and calls that it must not misread: refused with the reason, or put back whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import compatfix.runtime as runtime
from compatfix.runtime.caches import new_cache

from . import blocks, tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, target


def plain(session: Session, ids: list[int]) -> Any:
    with torch.inference_mode():
        return tiny.cached(session.model, torch.tensor([ids]), session.cache, session.cache.get_seq_length())


def test_a_plain_forward_behind_a_pending_block_of_states_is_told() -> None:
    session = Session(target("qwen3_5"))
    session.verify_chain(tiny.tokens(4))
    plain(session, [5])
    with pytest.raises(runtime.RuntimeRefusal, match="a forward ran past the runtime"):
        runtime.commit(session.cache, [0, 1])
    with pytest.raises(runtime.RuntimeRefusal, match="a forward ran past the runtime"):
        session.verify_chain(tiny.tokens(3))


def test_a_plain_forward_behind_a_pending_chain_of_keys_takes_the_chain_as_text() -> None:
    session, ids = Session(target("qwen3")), tiny.tokens(4)
    session.verify_chain(ids)
    plain(session, [5])
    session.verify_chain([6, 7])
    runtime.roll_back(session.cache, 2)
    session.assert_holds([*ids, 5])


def test_a_plain_forward_behind_a_pending_tree_of_keys_is_told() -> None:
    session = Session(target("qwen3"))
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    plain(session, [5])
    with pytest.raises(runtime.RuntimeRefusal, match="a forward ran past the runtime"):
        runtime.commit(session.cache, [0, 1])


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5", "lfm2"])
@pytest.mark.parametrize("wrong", ["positions", "interrupted"])
def test_a_verify_that_fails_leaves_the_chain_before_it_pending(kind: str, wrong: str) -> None:
    session, ids = Session(target(kind)), tiny.tokens(5)
    session.verify_chain(ids)
    if wrong == "positions":
        with pytest.raises(runtime.RuntimeRefusal, match="positions do not follow"), torch.inference_mode():
            positions = torch.tensor([[3, 4]])
            runtime.verify(session.model, torch.tensor([[1, 2]]), position_ids=positions, past_key_values=session.cache)
    else:

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        handle = session.model.lm_head.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.verify_chain([1, 2])
        handle.remove()
    runtime.crop_to(session.cache, session.start + 2)
    session.assert_holds(ids[:2])


def test_states_that_nobody_counted_are_no_empty_cache() -> None:
    model = target("falcon_mamba")
    cache = new_cache(model)
    with torch.inference_mode():
        model(tiny.prompt(9), use_cache=True, cache_params=cache) if "cache_params" in _names(model) else model(
            tiny.prompt(9), use_cache=True, cache=cache
        )
        with pytest.raises(runtime.RuntimeRefusal, match="did not count"):
            runtime.verify(model, torch.tensor([[1, 2]]), past_key_values=cache, use_cache=True)


def _names(model: Any) -> Any:
    import inspect

    return inspect.signature(model.forward).parameters


@pytest.mark.parametrize(("kind", "refused"), [("qwen3", False), ("qwen3_5", True)])
def test_a_tree_on_an_empty_cache_is_refused_where_states_would_mix(kind: str, refused: bool) -> None:
    model, parents = target(kind), DEEP_WITH_SIBLINGS
    ids = torch.tensor([tiny.tokens(11)])
    call = {
        "position_ids": blocks.positions(parents, 0),
        "attention_mask": blocks.mask(parents, 0),
        "past_key_values": new_cache(model),
        "use_cache": True,
    }
    with torch.inference_mode():
        if refused:
            with pytest.raises(runtime.RuntimeRefusal, match="prefill the prompt first"):
                runtime.verify(model, ids, **call)
            causal = {**call, "position_ids": None, "attention_mask": blocks.mask(tuple(range(-1, 10)), 0)}
            output = runtime.verify(model, ids, **causal)
            torch.testing.assert_close(output.logits[0], tiny.full_logits(model, ids[0].tolist()), rtol=2e-4, atol=2e-4)
        else:
            output = runtime.verify(model, ids, **call)
            path = blocks.path_to(parents, 10)
            whole = tiny.full_logits(model, ids[0, path].tolist())
            torch.testing.assert_close(output.logits[0, path], whole, rtol=2e-4, atol=2e-4)


def test_a_dict_of_masks_is_read_whatever_its_keys() -> None:
    session, ids = Session(target("gemma3"), 4), tiny.tokens(11)
    mask = {"sliding_attention": blocks.mask(DEEP_WITH_SIBLINGS, 4)}
    with torch.inference_mode():
        runtime.verify(
            session.model,
            torch.tensor([ids]),
            attention_mask=mask,
            position_ids=blocks.positions(DEEP_WITH_SIBLINGS, 4),
            past_key_values=session.cache,
            use_cache=True,
        )
    runtime.commit(session.cache, [0, 2])
    session.assert_holds([ids[0], ids[2]])


@pytest.mark.parametrize("strategy", ["gated-delta tree", "paths", "steps"])
def test_logits_can_be_asked_for_by_place(strategy: str) -> None:
    session, ids = Session(target("qwen3_5", strategy)), tiny.tokens(11)
    whole = session.verify(ids, DEEP_WITH_SIBLINGS).logits
    runtime.roll_back(session.cache, 11)
    some = session.verify(ids, DEEP_WITH_SIBLINGS, logits_to_keep=torch.tensor([0, 4])).logits
    torch.testing.assert_close(some, whole[:, [0, 4]], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("indices", [[0.9, 1.2], torch.tensor([0.0, 1.0]), ["0"]])
def test_a_path_is_made_of_whole_numbers(indices: Any) -> None:
    session = Session(target("qwen3"))
    session.verify_chain(tiny.tokens(3))
    with pytest.raises(runtime.RuntimeRefusal, match="whole numbers"):
        runtime.commit(session.cache, indices)


def test_a_tuple_is_no_cache() -> None:
    with pytest.raises(runtime.RuntimeRefusal, match="a tuple was given as the cache"):
        runtime.verify(target("qwen3"), tiny.prompt(3), past_key_values=((1, 2),), use_cache=True)


def test_what_was_refused_is_measured_again_when_asked() -> None:
    model = tiny.build("qwen3_5")
    mixer = model.model.layers[0].linear_attn
    original, broken = mixer.forward, [True]

    def noisy(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        return out + torch.randn_like(out) if broken[0] else out

    mixer.forward = noisy
    with pytest.raises(runtime.RuntimeRefusal):
        runtime.prepare(model)
    broken[0] = False
    assert runtime.prepare(model)["strategy"] is not None


def rotary(kind: str) -> Any:
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    common = {
        **size,
        "num_key_value_heads": 2,
        "vocab_size": tiny.VOCAB,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if kind == "longrope":
        rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
        config = transformers.Phi3Config(
            **common, max_position_embeddings=256, original_max_position_embeddings=32, rope_parameters=rope
        )
        return transformers.Phi3ForCausalLM(config).eval()
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    config = transformers.LlamaConfig(**common, max_position_embeddings=32, rope_parameters=rope)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("past", [20, 27, 40])
def test_a_block_across_the_length_where_rope_changes_is_that_of_plain_decoding(past: int) -> None:
    session = Session(rotary("longrope"), past)
    ids, path = tiny.tokens(11), blocks.path_to(DEEP_WITH_SIBLINGS, 10)
    output = session.verify(ids, DEEP_WITH_SIBLINGS)
    made = tiny.own_cache(session.model)
    with torch.inference_mode():
        tiny.cached(session.model, session.prompt, made)
        for depth, node in enumerate(path):
            step = tiny.cached(session.model, torch.tensor([[ids[node]]]), made, past + depth).logits[0, -1]
            torch.testing.assert_close(output.logits[0, node], step, rtol=2e-4, atol=2e-4)
    runtime.commit(session.cache, path[:3])
    session.assert_holds([ids[node] for node in path[:3]])


def test_dynamic_rope_is_refused_behind_its_length_and_exact_before() -> None:
    session, ids = Session(rotary("dynamic"), 20), tiny.tokens(11)
    session.verify(ids, DEEP_WITH_SIBLINGS)
    runtime.commit(session.cache, [0, 2])
    session.assert_holds([ids[0], ids[2]])
    far = Session(rotary("dynamic"), 30)
    with pytest.raises(runtime.RuntimeRefusal, match="dynamic rope scaling"):
        far.verify(ids, DEEP_WITH_SIBLINGS)
    far.assert_holds([])


def test_a_window_by_another_name_is_measured() -> None:
    torch.manual_seed(0)
    config = transformers.GPTNeoConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=32,
        max_position_embeddings=256,
    )
    model = transformers.GPTNeoForCausalLM(config).eval()
    assert runtime.prepare(model)["strategy"] != "mask"
