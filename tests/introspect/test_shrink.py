"""What a tiny config keeps of the real one, on plain dicts."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.introspect.layer_choice import choose_layers
from compatfix.introspect.shrink import shrink_config
from compatfix.introspect.shrink_draft import move_layer_ids, shrink_draft
from compatfix.introspect.slices import slice_of

from .conftest import example

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "depth", "layers"),
    [
        pytest.param({}, 36, (0, 1, 2, 3), id="all alike"),
        pytest.param({}, 2, (0, 1), id="shallower than a tiny model"),
        pytest.param({"layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 16}, 64, tuple(range(8)), id="two periods"),
        pytest.param({"layer_types": ([SLIDING] * 5 + [FULL]) * 4 + [SLIDING] * 2}, 26, tuple(range(6)), id="cut off"),
        pytest.param({"layer_types": [FULL] * 3 + [LINEAR] + [FULL] * 8}, 12, (0, 1, 2, 3), id="no period, early"),
        pytest.param({"layer_types": [FULL] * 30 + [LINEAR] + [FULL] * 9}, 40, (0, 30), id="no period, late"),
        pytest.param({"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2}, 32, tuple(range(8)),
                     id="interval fields"),
        pytest.param({"first_k_dense_replace": 3}, 61, (0, 1, 2, 3), id="dense layers at the front"),
        pytest.param({"attn_layer_indices": [9, 18, 27]}, 32, (0, 9), id="listed layers"),
    ],
)  # fmt: skip
def test_layers_of_every_kind_stay(config: dict[str, Any], depth: int, layers: tuple[int, ...]) -> None:
    assert choose_layers(config, depth).layers == layers


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config", config)


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3-8b"])
def test_is_tiny_and_leaves_the_real_config_alone(name: str) -> None:
    real = example(name)
    tiny = shrink_config(real)
    text = text_of(tiny.config)
    assert real == example(name)
    assert text["hidden_size"] <= 64
    assert 160 <= text["vocab_size"] <= 512
    assert text["num_hidden_layers"] == len(tiny.layers) <= 8
    assert tiny.size == {"hidden": text["hidden_size"], "vocab": text["vocab_size"], "depth": len(tiny.layers)}


def test_ratios_of_the_hybrid_stay() -> None:
    text = text_of(shrink_config(example("qwen3.6-27b")).config)
    assert text["layer_types"] == [LINEAR, LINEAR, LINEAR, FULL] * 2
    assert (text["num_attention_heads"], text["num_key_value_heads"]) == (12, 2)
    assert (text["linear_num_key_heads"], text["linear_num_value_heads"]) == (2, 6)
    assert text["linear_conv_kernel_dim"] == 4
    rotated = text["head_dim"] * text["rope_parameters"]["partial_rotary_factor"]
    assert text["rope_parameters"]["partial_rotary_factor"] == 0.25
    assert sum(text["rope_parameters"]["mrope_section"]) * 2 == rotated
    assert min(text["rope_parameters"]["mrope_section"]) >= 1


def test_special_tokens_move_to_the_top_and_stay_apart() -> None:
    tiny = shrink_config(example("qwen3.6-27b"))
    assert tiny.token_ids == {248044: 315, 248053: 316, 248054: 317, 248056: 318, 248057: 319}
    assert tiny.config["image_token_id"] == 318
    assert tiny.config["text_config"]["eos_token_id"] == 315
    assert tiny.mask_token_id == 314


def test_says_what_was_kept_and_lost() -> None:
    tiny = shrink_config(example("qwen3.6-27b"))
    kept = {statement.key for statement in tiny.kept}
    lost = {statement.key for statement in tiny.lost}
    assert {"kept.layer kinds", "kept.head ratio", "kept.linear head ratio", "kept.mrope sections"} <= kept
    assert {"lost.depth", "lost.width", "lost.vocabulary", "lost.vision_config"} <= lost


def test_a_window_becomes_small_and_is_said() -> None:
    base = {"vocab_size": 9, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    tiny = shrink_config({**base, "sliding_window": 4096})
    assert 8 <= tiny.config["sliding_window"] <= 16
    assert "lost.sliding_window" in {statement.key for statement in tiny.lost}


def test_a_config_without_a_field_that_matters_is_named() -> None:
    with pytest.raises(ValueError, match="no hidden_size"):
        shrink_config({"vocab_size": 9, "num_hidden_layers": 2})


@pytest.mark.parametrize(
    ("name", "repeats", "layers", "depth", "hidden"),
    [
        ("qwen3.6-27b", True, tuple(range(8)), 64, 5120),
        ("qwen3.6-27b", False, (0, 1, 2, 3), 64, 5120),
        ("qwen3-8b", True, (0, 1, 2, 3), 36, 4096),
        ("qwen3-8b", False, (0, 1), 36, 4096),
    ],
)
def test_a_slice_keeps_widths(name: str, repeats: bool, layers: tuple[int, ...], depth: int, hidden: int) -> None:
    cut = slice_of(example(name), repeats=repeats)
    text = text_of(cut.config)
    assert (cut.layers, cut.depth) == (layers, depth)
    assert (text["num_hidden_layers"], text["hidden_size"]) == (len(layers), hidden)
    assert text["vocab_size"] == text_of(example(name))["vocab_size"]


@pytest.mark.parametrize(
    ("ids", "depth", "tiny_depth", "expected"),
    [
        pytest.param([1, 16, 31, 46, 61], 64, 8, (0, 2, 3, 4, 6), id="hybrid example"),
        pytest.param([1, 9, 17, 25, 33], 36, 4, (0, 1, 2, 1, 2), id="more ids than layers"),
        pytest.param([62, 63], 64, 8, (6, 7), id="only the last is the last"),
        pytest.param([0], 64, 8, (0,), id="the first"),
        pytest.param([64], 64, 8, (8,), id="beyond stays beyond"),
        pytest.param([-1], 64, 8, (-1,), id="negative stays negative"),
    ],
)
def test_layer_ids_keep_their_relative_depth(
    ids: list[int], depth: int, tiny_depth: int, expected: tuple[int, ...]
) -> None:
    assert move_layer_ids(ids, depth, tiny_depth) == expected


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3-8b"])
def test_a_draft_fits_the_tiny_target(name: str) -> None:
    tiny = shrink_config(example(name))
    draft = shrink_draft(example(f"{name}-dflash"), tiny)
    config = draft.config
    assert config["hidden_size"] == tiny.size["hidden"]
    assert config["vocab_size"] == tiny.size["vocab"]
    assert config["num_target_layers"] == tiny.size["depth"]
    assert config["block_size"] == draft.block_size == 16
    assert config["dflash_config"]["mask_token_id"] == draft.mask_token_id == tiny.mask_token_id
    assert len(config["dflash_config"]["target_layer_ids"]) == 5
    assert all(0 <= i < tiny.size["depth"] for i in config["dflash_config"]["target_layer_ids"])
    assert config["num_attention_heads"] == 4 * config["num_key_value_heads"]


def test_a_draft_keeps_every_kind_of_layer_and_a_window_larger_than_a_block() -> None:
    draft = shrink_draft(example("qwen3.6-27b-dflash"), shrink_config(example("qwen3.6-27b")))
    assert set(draft.config["layer_types"]) == {SLIDING, FULL}
    assert draft.config["sliding_window"] > draft.block_size


def test_a_draft_keeps_fields_where_they_are_and_invents_none() -> None:
    real = example("qwen3-8b-dflash")
    real["dflash_config"]["block_size"] = real.pop("block_size")
    del real["dflash_config"]["target_layer_ids"]
    draft = shrink_draft(real, shrink_config(example("qwen3-8b")), mask_token_id=7)
    assert "block_size" not in draft.config
    assert draft.config["dflash_config"] == {"mask_token_id": 7, "block_size": 16}
    assert draft.target_layer_ids is None


def test_a_slice_s_windows_are_filled_by_short_texts() -> None:
    config = {"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 512, "vocab_size": 9}
    cut, real = slice_of({**config, "layer_types": ([SLIDING] * 5 + [FULL]) * 2}, repeats=False).with_short_windows()
    assert (cut.layers, real) == ((0, 1, 2, 3, 4, 5), {"sliding_window": 512})
    assert cut.config["sliding_window"] <= 32
    assert slice_of(config).with_short_windows()[0].config["sliding_window"] == cut.config["sliding_window"]
    assert slice_of({**config, "sliding_window": None}).with_short_windows()[1] == {}
