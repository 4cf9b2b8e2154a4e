"""What a quantisation is, as each tool's config says it, and what headers add."""

from __future__ import annotations

from typing import Any

import pytest

from compatfix.checkpoint.header import StoredTensor
from compatfix.checkpoint.quantisation import describe_quantisation
from compatfix.profiles import Quantisation, Share

PACKED = {"group_0": {"weights": {"num_bits": 4, "type": "float"}, "targets": ["Linear"]}}
CONFIGS: dict[str, tuple[dict[str, Any], Quantisation]] = {
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
        Quantisation("fp8", None, 8, ("lm_head",)),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "modules_to_not_convert": None},
        Quantisation("awq", "gemm", 4),
    ),
    "gptq": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, Quantisation("gptq", None, 8)),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": PACKED,
            "ignore": ["lm_head", "re:.*linear_attn.*"],
        },
        Quantisation("compressed-tensors", "nvfp4-pack-quantized", 4, ("lm_head", "re:.*linear_attn.*")),
    ),
    "rotated": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            "transform_config": {"config_groups": {"R1": {"type": "hadamard"}, "R2": {}}},
        },
        Quantisation("compressed-tensors", "pack-quantized", 4, (), "R1, R2"),
    ),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
        Quantisation("modelopt", "NVFP4", 4, ("lm_head",)),
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
        | {"llm_int8_skip_modules": ["x"]},
        Quantisation("bitsandbytes", "nf4", 4, ("x",)),
    ),
    "bitsandbytes in 8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        Quantisation("bitsandbytes", None, 8),
    ),
    "torchao": (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {}}}},
        Quantisation("torchao", "Int4WeightOnlyConfig", None),
    ),
    "mxfp4": (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        Quantisation("mxfp4", None, 4, ("model.layers.*.self_attn",)),
    ),
    "one of another year": ({"quant_method": "hyper2"}, Quantisation("hyper2")),
    "without a name": ({}, Quantisation("unknown")),
    "bitsandbytes without its name": ({"load_in_4bit": True}, Quantisation("bitsandbytes", None, 4)),
    "of odd values": ({"quant_method": 7, "ignore": "x", "config_groups": [], "bits": "4"}, Quantisation("7")),
}  # fmt: skip


@pytest.mark.parametrize("nested", [False, True], ids=["top", "text part"])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_tool_s_config_is_read(name, nested):
    section, expected = CONFIGS[name]
    config = {"quantization_config": section}
    assert describe_quantisation({"text_config": config} if nested else config, None) == expected


def test_a_word_is_the_method_and_an_older_name_of_the_section_counts():
    assert describe_quantisation({"quantization_config": "fp8"}, None) == Quantisation("fp8", None, 8)
    section = {"quant_method": "compressed-tensors"}
    assert describe_quantisation({"compression_config": section}, None) == Quantisation("compressed-tensors")


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}])
def test_no_quantisation_is_none(config):
    assert describe_quantisation(config, None) is None


def stored(name: str, dtype: str, *shape: int) -> StoredTensor:
    return StoredTensor(name, dtype, shape, 0, "a.safetensors")


def test_headers_tell_what_is_quantised_by_part():
    names = [
        ("model.embed_tokens.weight", "BF16", 64, 32),
        ("lm_head.weight", "BF16", 64, 32),
        ("model.norm.weight", "BF16", 32),
        ("model.layers.0.linear_attn.in_proj_qkv.weight", "BF16", 32, 32),
        ("model.layers.0.linear_attn.out_proj.weight", "F8_E4M3", 32, 32),
        ("model.layers.0.linear_attn.out_proj.weight_scale_inv", "F32", 1, 1),
        ("model.layers.0.linear_attn.conv1d.weight", "BF16", 32, 1, 4),
        ("model.layers.0.linear_attn.A_log", "F32", 8),
        ("model.layers.1.self_attn.q_proj.weight", "F8_E4M3", 32, 32),
        ("model.layers.1.self_attn.q_proj.weight_scale_inv", "F32", 1, 1),
        ("model.layers.1.mlp.up_proj.weight_packed", "U8", 32, 16),
        ("model.layers.1.mlp.up_proj.weight_scale", "F8_E4M3", 32, 2),
    ]
    tensors = {entry[0]: stored(*entry) for entry in names}
    found = describe_quantisation({"quantization_config": {"quant_method": "fp8"}}, tensors)
    assert found is not None
    assert found.shares == (
        Share("embed_tokens", 0, 1),
        Share("linear_attn", 1, 2, recurrent=True),
        Share("lm_head", 0, 1),
        Share("mlp", 1, 1),
        Share("self_attn", 1, 1),
    )
