"""What is known of the examples from their configs alone."""

from __future__ import annotations

import pytest
import transformers

from compatfix.introspect.classes import NoClass, alternatives, config_from_dict, resolve
from compatfix.introspect.skeleton import build_skeleton, describe_class, kernel_packages
from compatfix.introspect.states import count_states
from compatfix.profiles import ClassProfile

from .conftest import VL, example


def profile(name: str, loader: str = "AutoModelForCausalLM") -> ClassProfile:
    resolved = resolve(config_from_dict(example(name)), loader)
    return describe_class(build_skeleton(resolved, "bfloat16"), (loader,))


def test_the_text_class_of_the_hybrid() -> None:
    found = profile("qwen3.6-27b")
    assert found.name == "Qwen3_5ForCausalLM"
    assert found.tensors == 851
    assert round(found.parameters / 1e9, 1) == 26.9
    assert (found.embedding, found.layers) == ("model.embed_tokens", "model.layers")
    assert (found.norm, found.head) == ("model.norm", "lm_head")
    assert found.nesting == ("Qwen3_5ForCausalLM", "model: Qwen3_5TextModel", "layers: 64 × Qwen3_5DecoderLayer")
    assert not found.tied


def test_the_wrapper_class_of_the_hybrid() -> None:
    found = profile("qwen3.6-27b", VL)
    assert found.name == "Qwen3_5ForConditionalGeneration"
    assert found.tensors == 1184
    assert found.embedding == "model.language_model.embed_tokens"
    assert (found.norm, found.head) == ("model.language_model.norm", "lm_head")
    assert len(found.nesting) == 4


def test_the_path_of_the_notes_exists_in_no_class() -> None:
    for loader in ("AutoModelForCausalLM", VL):
        assert profile("qwen3.6-27b", loader).claimed["model.language_model.model.embed_tokens"] is False


def test_the_attention_only_example() -> None:
    found = profile("qwen3-8b")
    assert (found.name, found.tensors, found.embedding) == ("Qwen3ForCausalLM", 399, "model.embed_tokens")


def test_a_tied_head_is_seen() -> None:
    config = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=64, vocab_size=99, tie_word_embeddings=True)
    assert describe_class(build_skeleton(resolve(config), "float32"), ()).tied


def test_alternatives_are_each_named_once() -> None:
    found = [resolved.name for resolved in alternatives(config_from_dict(example("qwen3.6-27b")))]
    assert found == ["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"]


def test_the_class_is_the_one_that_the_library_builds() -> None:
    import torch

    config = config_from_dict(example("qwen3.6-27b"))
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    assert type(built) is resolve(config).model_class


def test_a_draft_config_needs_no_remote_code() -> None:
    assert config_from_dict(example("qwen3-8b-dflash")).model_type == "qwen3"


def test_an_unknown_model_type_has_no_class() -> None:
    with pytest.raises(NoClass, match="does not know the model type 'no_such_model'"):
        config_from_dict({"model_type": "no_such_model"})


def test_fast_paths_are_read_from_the_layers() -> None:
    hybrid = build_skeleton(resolve(config_from_dict(example("qwen3.6-27b"))), "bfloat16")
    assert kernel_packages(hybrid, "model.layers") == ("causal-conv1d", "flash-linear-attention")
    plain = build_skeleton(resolve(config_from_dict(example("qwen3-8b"))), "bfloat16")
    assert kernel_packages(plain, "model.layers") == ()


def test_states_of_the_hybrid_are_counted() -> None:
    states = count_states(resolve(config_from_dict(example("qwen3.6-27b"))), "bfloat16")
    # 16 layers × keys and values × 4 heads × 256 × 2 bytes; 48 layers × 48 heads × 128 × 128 × 4 bytes.
    assert states.counted
    assert states.kv_per_token == 16 * 2 * 4 * 256 * 2
    assert states.recurrent == 48 * 48 * 128 * 128 * 4
    assert states.conv == 48 * (2 * 16 * 128 + 48 * 128) * 4 * 2


def test_sliding_layers_are_bounded() -> None:
    config = transformers.Gemma3TextConfig(num_hidden_layers=6)
    states = count_states(resolve(config), "bfloat16")
    assert states.kv_per_token == 1 * 2 * 4 * 256 * 2
    assert states.window_bytes == 5 * 2 * 4 * 256 * 2 * config.sliding_window


def test_states_are_worked_out_where_the_forward_needs_values(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.introspect import states as module

    def fails(*args: object) -> None:
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    monkeypatch.setattr(module, "build_skeleton", fails)
    states = count_states(resolve(config_from_dict(example("qwen3.6-27b"))), "bfloat16")
    assert not states.counted
    assert states.kv_per_token == 16 * 2 * 4 * 256 * 2
    assert states.recurrent == 48 * 48 * 128 * 128 * 4
