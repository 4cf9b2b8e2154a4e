"""Draft configs as they are found: fields on top or nested, absent, and in the forms of two library versions."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.introspect.draft import describe_draft

BASE: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "num_target_layers": 36,
}
NESTED = {"mask_token_id": 999, "target_layer_ids": [1, 17, 33]}

SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "published": (
        {"block_size": 16, "dflash_config": NESTED},
        {"block_size": 16, "block_size_at": "top", "mask_token_id": 999, "layer_ids": (1, 17, 33), "missing": ()},
    ),
    "everything nested": (
        {"dflash_config": {**NESTED, "block_size": 8}},
        {"block_size": 8, "block_size_at": "dflash_config", "mask_token_at": "dflash_config"},
    ),
    "everything on top": (
        {"block_size": 8, **NESTED},
        {"block_size": 8, "mask_token_id": 999, "mask_token_at": "top", "layer_ids_at": "top"},
    ),
    "in both places": (
        {"block_size": 16, "dflash_config": {**NESTED, "block_size": 8}},
        {"block_size": 8, "block_size_at": "both"},
    ),
    "no mask token": (
        {"block_size": 16, "dflash_config": {"target_layer_ids": [1, 17, 33]}},
        {"mask_token_id": None, "mask_token_at": "nowhere"},
    ),
    "no layer ids": (
        {"block_size": 16, "dflash_config": {"mask_token_id": 999}},
        {"layer_ids": (1, 17, 33), "layer_ids_at": "nowhere"},
    ),
    "no layer ids and one layer": (
        {"block_size": 16, "num_hidden_layers": 1, "dflash_config": {"mask_token_id": 999}},
        {"layer_ids": (18,)},
    ),
    "neither layer ids nor the target's depth": (
        {"block_size": 16, "num_target_layers": None, "dflash_config": {"mask_token_id": 999}},
        {"layer_ids": (), "num_target_layers": None},
    ),
    "rope of transformers 4": (
        {"rope_theta": 1e7, "rope_scaling": None, "dflash_config": NESTED},
        {"rope_theta": 1e7},
    ),
    "rope of transformers 5": (
        {"rope_parameters": {"rope_theta": 1e7, "rope_type": "default"}, "dflash_config": NESTED},
        {"rope_theta": 1e7},
    ),
    "dtype of transformers 4": ({"torch_dtype": "bfloat16", "dflash_config": NESTED}, {"dtype": "bfloat16"}),
    "code of its own": (
        {"auto_map": {"AutoModel": "modeling.DFlash"}, "dflash_config": NESTED},
        {"remote_code": True, "missing": ()},
    ),
    "windows": (
        {"sliding_window": 2048, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
        | {"dflash_config": NESTED},
        {"sliding_layers": 2, "sliding_window": 2048},
    ),
    "scales": (
        {"dflash_config": {**NESTED, "input_embedding_scale": 8.0, "final_logit_softcapping": 30}},
        {"embedding_scale": 8.0, "logit_softcap": 30.0},
    ),
    "values of odd kinds": (
        {"block_size": "16", "dflash_config": {"mask_token_id": True, "target_layer_ids": "1, 2"}},
        {"block_size": None, "mask_token_id": None, "layer_ids_at": "nowhere"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_read_of_it(name: str) -> None:
    changes, expected = SHAPES[name]
    profile = describe_draft({**BASE, **changes})
    assert {field: getattr(profile, field) for field in expected} == expected
