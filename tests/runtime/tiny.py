"""Tiny random targets for the runtime's tests, and plain decoding of them as the independent reference.

Weights are larger than the library's and recurrent states remember for long: at default initialisation the states
decay almost at once and hide corruption.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="The fast path is not available")

VOCAB, HIDDEN, WINDOW = 131, 64, 8
HYBRID = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
ROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}
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

# Which strategies must be lossless on which target; the first is the one that must be chosen.
STRATEGIES = {
    "qwen3": ["mask", "paths", "steps"],
    "gemma3": ["mask", "paths", "steps"],
    "qwen3_5": ["gated-delta tree", "mixer levels", "paths", "steps"],
    "qwen3_5_vl": ["gated-delta tree", "mixer levels", "paths", "steps"],
    "qwen3_next": ["gated-delta tree", "mixer levels", "paths", "steps"],
    "lfm2": ["conv tree", "mixer levels", "paths", "steps"],
    "falcon_h1": ["mixer levels", "paths", "steps"],
    "jamba": ["mixer levels", "steps"],
}


def build(kind: str, dtype: torch.dtype = torch.float32, seed: int = 0, attention: str = "sdpa") -> Any:
    """A fresh target of that kind."""
    torch.manual_seed(seed)
    config, cls = _class(kind)
    config._attn_implementation = attention
    model = _shaken(cls(config), seed).to(dtype).eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


@cache
def shared(kind: str) -> Any:
    """One float32 target of that kind for all tests that leave it as it is."""
    return build(kind)


def _class(kind: str) -> tuple[Any, Any]:
    if kind == "qwen3":
        return transformers.Qwen3Config(**BASE, num_hidden_layers=3), transformers.Qwen3ForCausalLM
    if kind == "gemma3":
        types = ["sliding_attention", "full_attention", "sliding_attention"]
        config = transformers.Gemma3TextConfig(
            **BASE, num_hidden_layers=3, sliding_window=WINDOW, query_pre_attn_scalar=16, layer_types=types
        )
        return config, transformers.Gemma3ForCausalLM
    if kind in ("qwen3_5", "qwen3_5_vl"):
        from transformers.models.qwen3_5 import configuration_qwen3_5 as configs
        from transformers.models.qwen3_5 import modeling_qwen3_5 as models

        text = {**BASE, **LINEAR, "rope_parameters": ROPE}
        if kind == "qwen3_5":
            return configs.Qwen3_5TextConfig(**text), models.Qwen3_5ForCausalLM
        vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": HIDDEN}
        config = configs.Qwen3_5Config(
            text_config=text,
            vision_config={**vision, "patch_size": 4, "num_position_embeddings": 16},
            image_token_id=VOCAB - 2,
            video_token_id=VOCAB - 3,
            vision_start_token_id=VOCAB - 4,
            vision_end_token_id=VOCAB - 5,
            tie_word_embeddings=False,
        )
        return config, models.Qwen3_5ForConditionalGeneration
    if kind == "qwen3_next":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        config = transformers.Qwen3NextConfig(**BASE, **LINEAR, **experts, shared_expert_intermediate_size=32)
        return config, transformers.Qwen3NextForCausalLM
    if kind == "lfm2":
        types = ["conv", "full_attention", "conv"]
        config = transformers.Lfm2Config(
            **BASE, num_hidden_layers=3, conv_L_cache=3, layer_types=types, block_multiple_of=16
        )
        return config, transformers.Lfm2ForCausalLM
    if kind == "falcon_h1":
        mamba = {"mamba_d_ssm": HIDDEN, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1}
        config = transformers.FalconH1Config(
            **BASE, **mamba, num_hidden_layers=2, mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=16
        )
        return config, transformers.FalconH1ForCausalLM
    if kind == "jamba":
        mamba = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 8}
        layers = {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
        config = transformers.JambaConfig(
            **BASE,
            **mamba,
            **layers,
            num_hidden_layers=3,
            num_experts=2,
            num_experts_per_tok=1,
            use_mamba_kernels=False,
        )
        return config, transformers.JambaForCausalLM
    raise ValueError(kind)


def _shaken(model: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                uniform = torch.rand(parameter.shape, generator=generator)
                parameter.copy_(torch.log(uniform * 0.15 + 0.005))
            elif name.endswith("dt_bias"):
                parameter.copy_(noise * 0.3 - 1.0)
            elif parameter.ndim == 2:
                gain = 1.3 if "embed" in name else (3.9 if "lm_head" in name else 1.3) / math.sqrt(parameter.shape[-1])
                parameter.copy_(noise * gain)
            elif parameter.ndim > 2:
                parameter.copy_(noise * 0.5)
    return model


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(1, VOCAB - 8, (1, length), generator=generator)


def tokens(count: int, seed: int = 2) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB - 8, (count,), generator=generator).tolist()


def full_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """(T, vocabulary) of a plain forward without any cache."""
    with torch.inference_mode():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0]


def own_cache(model: Any) -> Any:
    """The library's own cache for this model, with window layers replaced by hand; not the runtime's."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    made = DynamicCache(config=model.config)
    made.layers[:] = [DynamicLayer() if getattr(layer, "is_sliding", False) else layer for layer in made.layers]
    return made


def cached(model: Any, ids: torch.Tensor, made: Any) -> Any:
    """A plain forward on a cache, under the name that this version has for it."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return model(ids, use_cache=True, **{name: made})


def decoded(model: Any, prefix: torch.Tensor, path: Sequence[int]) -> Any:
    """The cache that plain decoding leaves: the prefix at once, then `path` one token at a time."""
    made = own_cache(model)
    with torch.inference_mode():
        cached(model, prefix, made)
        for token in path:
            cached(model, torch.tensor([[token]]), made)
    return made


def greedy(model: Any, prefix: torch.Tensor, count: int) -> list[int]:
    with torch.inference_mode():
        made = own_cache(model)
        logits = cached(model, prefix, made).logits
        out = [int(logits[0, -1].argmax())]
        while len(out) < count:
            logits = cached(model, torch.tensor([[out[-1]]]), made).logits
            out.append(int(logits[0, -1].argmax()))
    return out


def tensors(made: Any) -> dict[str, torch.Tensor]:
    """Every tensor of a cache with layers, by name: an own reading, not the runtime's."""
    found: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(made.layers):
        for name in ("keys", "values", "conv_states", "recurrent_states"):
            value = getattr(layer, name, None)
            if isinstance(value, torch.Tensor):
                found[f"{index}.{name}"] = value
            elif isinstance(value, dict):
                found.update({f"{index}.{name}.{k}": v for k, v in value.items() if isinstance(v, torch.Tensor)})
    return found
