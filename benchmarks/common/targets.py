"""Random targets of a size to be measured, and the strategies that are exact on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

import compatfix.runtime as runtime

VOCABULARY = 2048
Settings = dict[str, Any]


def build(kind: str, hidden: int, layers: int) -> Any:
    """A target of one of KINDS; recurrent layers make up three quarters of a hybrid, as in the published models."""
    import transformers

    name, settings = KINDS[kind]
    config = getattr(transformers, TEXT_CONFIGS.get(kind, f"{name}Config"))
    cls = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(0)
    return cls(config(**settings(hidden, layers))).eval()


def prepared(model: Any, names: list[str]) -> dict[str, Any]:
    """The model once per strategy that is exact on it: shallow copies, which share everything but the choice."""
    targets = {}
    for name in names:
        target = copy.copy(model)
        try:
            runtime.prepare(target, name)
        except runtime.RuntimeRefusal:
            continue
        targets[name] = target
    return targets


def _base(hidden: int, layers: int) -> Settings:
    heads = max(2, hidden // 64)
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "head_dim": 64,
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }


def _types(layers: int, recurrent: str, whole: str = "full_attention") -> Settings:
    return {"layer_types": [whole if i % 4 == 3 else recurrent for i in range(layers)]}


def _gated_delta(hidden: int, layers: int) -> Settings:
    heads = max(2, hidden // 64)
    return {
        **_base(hidden, layers),
        **_types(layers, "linear_attention"),
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": heads // 2,
        "linear_num_value_heads": heads,
    }


def _mamba_2(hidden: int, layers: int) -> Settings:
    sizes = {"mamba_n_heads": hidden // 32, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 64}
    return {**_base(hidden, layers), **sizes, "mamba_expand": 2, "mamba_chunk_size": 64}


def _kimi(hidden: int, layers: int) -> Settings:
    settings = {**_base(hidden, layers), **_types(layers, "linear_attention")}
    del settings["head_dim"]
    latent = {"q_lora_rank": None, "kv_lora_rank": hidden // 4, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64}
    experts = {"n_routed_experts": None, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    linear = {"linear_head_dim": 64, "linear_num_heads": max(2, hidden // 64), "linear_conv_kernel_dim": 4}
    heads = {"num_key_value_heads": settings["num_attention_heads"], "v_head_dim": 64}
    return {**settings, **latent, **experts, **linear, **heads}


def _mamba_1(hidden: int, layers: int) -> Settings:
    mamba = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": hidden // 16}
    places = {"attn_layer_period": 4, "attn_layer_offset": 3, "expert_layer_period": 2, "expert_layer_offset": 1}
    return {**_base(hidden, layers), **mamba, **places, "num_experts": 2, "num_experts_per_tok": 1}


KINDS: Mapping[str, tuple[str, Callable[[int, int], Settings]]] = {
    "qwen3": ("Qwen3", _base),
    "gemma3": (
        "Gemma3",
        lambda hidden, layers: {
            **_base(hidden, layers),
            **_types(layers, "sliding_attention"),
            "sliding_window": 128,
            "query_pre_attn_scalar": 64,
        },
    ),
    "qwen3_5": ("Qwen3_5", _gated_delta),
    "kimi_linear": ("KimiLinear", _kimi),
    "lfm2": ("Lfm2", lambda hidden, layers: {**_base(hidden, layers), **_types(layers, "conv")}),
    "falcon_h1": ("FalconH1", lambda hidden, layers: {**_mamba_2(hidden, layers), "mamba_d_ssm": 2 * hidden}),
    "bamba": (
        "Bamba",
        lambda hidden, layers: {**_mamba_2(hidden, layers), "attn_layer_indices": list(range(3, layers, 4))},
    ),
    "minimax": (
        "MiniMax",
        lambda hidden, layers: {
            **_base(hidden, layers),
            **_types(layers, "linear_attention"),
            "intermediate_size": hidden,
            "num_local_experts": 4,
        },
    ),
    "jamba": ("Jamba", _mamba_1),
    "falcon_mamba": (
        "FalconMamba",
        lambda hidden, layers: {
            "vocab_size": VOCABULARY,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "intermediate_size": 2 * hidden,
            "state_size": 16,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
        },
    ),
}
TEXT_CONFIGS = {"gemma3": "Gemma3TextConfig", "qwen3_5": "Qwen3_5TextConfig"}
