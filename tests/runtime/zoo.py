"""The kinds of target that the runtime is tested on: one small config each, with every kind of layer of its class.

Windows are 8 tokens, so that they wrap; an indexer has 16 heads, since few heads tie at a score of zero; defaults that
hide a feature (Bamba without attention, MiniMax without its linear layers) are overridden.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB, HIDDEN, WINDOW = 131, 64, 8
HYBRID = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
WINDOWED = ["sliding_attention", "full_attention", "sliding_attention"]
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
LINEAR: dict[str, Any] = {
    "num_hidden_layers": len(HYBRID),
    "layer_types": HYBRID,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    }
}
# No head_dim: such classes derive it from the rotary part.
LATENT: dict[str, Any] = {
    **{name: value for name, value in BASE.items() if name != "head_dim"},
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MAMBA_2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
MULTIMODAL: dict[str, Any] = {
    "vision_config": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "patch_size": 4,
        "num_position_embeddings": 16,
    },
    "image_token_id": VOCAB - 2,
    "video_token_id": VOCAB - 3,
    "vision_start_token_id": VOCAB - 4,
    "vision_end_token_id": VOCAB - 5,
    "tie_word_embeddings": False,
}

ATTENTION = ("mask", "paths", "steps")
DELTA = ("gated-delta tree", "mixer levels", "paths", "steps")
RECURRENT = ("mixer levels", "paths", "steps")


@dataclass(frozen=True)
class Kind:
    """One kind of target. `strategies` must be lossless on it; the first is the one that must be chosen."""

    family: str  # the module of transformers.models
    config: str
    model: str
    settings: Mapping[str, Any]
    strategies: tuple[str, ...]
    attention: str = "sdpa"
    text: Mapping[str, Any] = field(default_factory=dict)  # of a class that wraps a text model

    def classes(self) -> tuple[type, type]:
        package = f"transformers.models.{self.family}"
        configs = importlib.import_module(f"{package}.configuration_{self.family}")
        models = importlib.import_module(f"{package}.modeling_{self.family}")
        return getattr(configs, self.config), getattr(models, self.model)

    def build(self, attention: str | None = None) -> Any:
        config_class, model_class = self.classes()
        settings = {**self.settings, **({"text_config": dict(self.text)} if self.text else {})}
        config = config_class(**settings)
        config._attn_implementation = attention or self.attention
        return model_class(config)


KINDS: dict[str, Kind] = {
    "qwen3": Kind("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {**BASE, "num_hidden_layers": 3}, ATTENTION),
    "llama": Kind("llama", "LlamaConfig", "LlamaForCausalLM", {**BASE, "num_hidden_layers": 3}, ATTENTION),
    "mistral": Kind(
        "mistral",
        "MistralConfig",
        "MistralForCausalLM",
        {**BASE, "num_hidden_layers": 3, "sliding_window": WINDOW},
        ATTENTION,
    ),
    "qwen3_moe": Kind(
        "qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", {**BASE, **EXPERTS, "num_hidden_layers": 3}, ATTENTION
    ),
    "deepseek_v3": Kind(
        "deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM", {**LATENT, "num_hidden_layers": 3}, ATTENTION
    ),
    # The third layer attends to fewer tokens than the shortest context has, so that the indexer decides.
    "deepseek_v32": Kind(
        "deepseek_v32",
        "DeepseekV32Config",
        "DeepseekV32ForCausalLM",
        {**LATENT, "num_hidden_layers": 3, "index_topk": 8, "index_n_heads": 16, "index_head_dim": 16},
        ATTENTION,
    ),
    "gemma3": Kind(
        "gemma3",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **BASE,
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "layer_types": WINDOWED,
        },
        ATTENTION,
    ),
    # The last two layers use the keys and values of the first two.
    "gemma4": Kind(
        "gemma4",
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **BASE,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "sliding_window": WINDOW,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB,
            "final_logit_softcapping": 30.0,
        },
        ATTENTION,
    ),
    # Sinks: the library has them in its eager attention only.
    "gpt_oss": Kind(
        "gpt_oss",
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            **BASE,
            "num_hidden_layers": 3,
            "layer_types": WINDOWED,
            "sliding_window": WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        ATTENTION,
        attention="eager",
    ),
    "qwen3_5": Kind("qwen3_5", "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {**BASE, **LINEAR, **MROPE}, DELTA),
    "qwen3_5_vl": Kind(
        "qwen3_5",
        "Qwen3_5Config",
        "Qwen3_5ForConditionalGeneration",
        MULTIMODAL,
        DELTA,
        text={**BASE, **LINEAR, **MROPE},
    ),
    "qwen3_5_moe": Kind(
        "qwen3_5_moe",
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {**BASE, **LINEAR, **EXPERTS, **MROPE, "shared_expert_intermediate_size": 32},
        DELTA,
    ),
    "qwen3_next": Kind(
        "qwen3_next",
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**BASE, **LINEAR, **EXPERTS, "shared_expert_intermediate_size": 32},
        DELTA,
    ),
    "olmo_hybrid": Kind(
        "olmo_hybrid", "OlmoHybridConfig", "OlmoHybridForCausalLM", {**BASE, **LINEAR, "pad_token_id": 0}, DELTA
    ),
    "kimi_linear": Kind(
        "kimi_linear",
        "KimiLinearConfig",
        "KimiLinearForCausalLM",
        {
            **LATENT,
            "pad_token_id": 0,
            "q_lora_rank": None,
            "n_routed_experts": None,
            "num_local_experts": 4,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "linear_conv_kernel_dim": 4,
        },
        ("kimi-delta tree", *RECURRENT),
    ),
    "lfm2": Kind(
        "lfm2",
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {
            **BASE,
            "num_hidden_layers": 3,
            "conv_L_cache": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_multiple_of": 16,
        },
        ("conv tree", *RECURRENT),
    ),
    "falcon_h1": Kind(
        "falcon_h1",
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {**BASE, **MAMBA_2, "mamba_d_ssm": HIDDEN, "mamba_n_heads": 4, "mamba_n_groups": 1, "num_hidden_layers": 2},
        ("mamba-2 tree", *RECURRENT),
    ),
    "bamba": Kind(
        "bamba",
        "BambaConfig",
        "BambaForCausalLM",
        {**BASE, **MAMBA_2, "num_hidden_layers": 3, "attn_layer_indices": [1]},
        ("mamba-2 tree", *RECURRENT),
    ),
    "nemotron_h": Kind(
        "nemotron_h",
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {
            **BASE,
            "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe", "linear_attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "chunk_size": 16,
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
        },
        ("mamba-2 tree", *RECURRENT),
    ),
    "granitemoehybrid": Kind(
        "granitemoehybrid",
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            **BASE,
            **MAMBA_2,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "position_embedding_type": "rope",
            "num_local_experts": 4,
            "shared_intermediate_size": 32,
            "attention_multiplier": 0.25,
            "embedding_multiplier": 2.0,
            "logits_scaling": 2.0,
        },
        ("mamba-2 tree", *RECURRENT),
    ),
    # Mamba-1: a forward of several tokens ignores the states, so paths are wrong.
    "jamba": Kind(
        "jamba",
        "JambaConfig",
        "JambaForCausalLM",
        {
            **BASE,
            "mamba_d_state": 8,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": 8,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_hidden_layers": 3,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "use_mamba_kernels": False,
        },
        ("mixer levels", "steps"),
    ),
    "falcon_mamba": Kind(
        "falcon_mamba",
        "FalconMambaConfig",
        "FalconMambaForCausalLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 3,
            "state_size": 8,
            "time_step_rank": 8,
            "tie_word_embeddings": False,
        },
        ("mixer levels", "steps"),
        attention="eager",
    ),
    "minimax": Kind(
        "minimax",
        "MiniMaxConfig",
        "MiniMaxForCausalLM",
        {
            **BASE,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 4,
            "block_size": 16,
        },
        ("lightning tree", *RECURRENT),
    ),
}
