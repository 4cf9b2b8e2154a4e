"""Shrinks a config to a tiny one of the same class. Torch-free: a config as a dict in, another dict out.

The rules go by field names and by the constraints between fields, never by model type: every kind of layer stays,
ratios between heads stay, widths go. What stays and what goes is written down, because a statement that was measured
on the tiny model holds for the real one only as far as the tiny one resembles it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, lcm
from typing import Any

from compatfix.introspect.layer_choice import INDEX_FIELDS, PREFIX_FIELDS, LayerChoice, choose_layers, per_layer_lists
from compatfix.model import Statement

HIDDEN = 64
VOCAB = 320
WINDOW = 12
# Rotary dimensions left to a head: enough for three mrope sections and for slow and fast frequencies.
ROTARY = 8
TEXT_KEYS = ("text_config", "llm_config", "language_config")

HIDDEN_NAMES = ("hidden_size", "n_embd", "d_model", "dim")
DEPTH_NAMES = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEAD_NAMES = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEAD_NAMES = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
WINDOW_NAMES = ("sliding_window", "attention_chunk_size", "local_attention_window", "sliding_window_size")

# Fields set to a small constant wherever they are larger: widths that no other field must agree with.
CAPS = {
    "intermediate_size": 2 * HIDDEN,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "intermediate_size_mlp": 2 * HIDDEN,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "state_size": 16,
    "mamba_chunk_size": 16,
    "mamba_dt_rank": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "block_multiple_of": 16,
    "hidden_size_per_layer_input": 16,
}
EXPERT_NAMES = ("num_experts", "num_local_experts", "n_routed_experts")
EXPERTS_PER_TOKEN_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


@dataclass(frozen=True)
class Shrunk:
    """A tiny config as a dict, and how it came from the real one.

    `token_ids` maps the real special ids to tiny ones; `mask_token_id` is reserved for a draft; `layers[i]` is the real
    layer that tiny layer i stands for. `real` and `size` hold hidden, vocab and depth of the real and the tiny model.
    """

    config: dict[str, Any]
    layers: tuple[int, ...]
    token_ids: Mapping[int, int]
    mask_token_id: int
    real: Mapping[str, int]
    size: Mapping[str, int]
    kept: tuple[Statement, ...]
    lost: tuple[Statement, ...]


@dataclass
class Ledger:
    """What was kept and what was lost, as it is decided."""

    kept: list[Statement] = field(default_factory=list)
    lost: list[Statement] = field(default_factory=list)

    def keep(self, key: str, text: str, value: Any = None) -> None:
        self.kept.append(Statement("tiny model", f"kept.{key}", text, "read", value))

    def lose(self, key: str, text: str, value: Any = None) -> None:
        self.lost.append(Statement("tiny model", f"lost.{key}", text, "read", value))


def shrink_config(config: Mapping[str, Any], *, vocab: int = VOCAB) -> Shrunk:
    """Shrinks the config of a causal LM, or of a multimodal wrapper with its text part inside.

    Raises ValueError naming the field that is missing.
    """
    tiny = copy.deepcopy(dict(config))
    ledger = Ledger()
    text = text_part(tiny)
    real = {"hidden": require(text, HIDDEN_NAMES), "depth": require(text, DEPTH_NAMES), "vocab": text["vocab_size"]}
    token_ids, mask_token_id = _token_map(tiny, vocab)
    choice = shrink_depth(text, real["depth"], ledger)
    shrink_text(text, ledger)
    text["vocab_size"] = vocab
    hidden = require(text, HIDDEN_NAMES)
    size = {"hidden": hidden, "depth": len(choice.layers), "vocab": vocab}
    ledger.lose("width", f"hidden size {real['hidden']} → {hidden}", [real["hidden"], hidden])
    ledger.lose("vocabulary", f"vocabulary {real['vocab']} → {vocab}; special ids moved", [real["vocab"], vocab])
    if tiny is not text:
        _shrink_wrapper(tiny, text, hidden, ledger)
    _move_tokens(tiny, token_ids)
    drop_quantisation(tiny, ledger)
    return Shrunk(tiny, choice.layers, token_ids, mask_token_id, real, size, tuple(ledger.kept), tuple(ledger.lost))


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model; the config itself where it is not a wrapper."""
    for key in TEXT_KEYS:
        if isinstance(config.get(key), dict):
            return config[key]  # type: ignore[no-any-return]
    return config


def shrink_text(text: dict[str, Any], ledger: Ledger, *, hidden: int | None = None, window: int = WINDOW) -> None:
    """Shrinks the widths of a language model's config in place; `hidden` forces the hidden size."""
    _shrink_attention(text, ledger, hidden)
    _shrink_linear_heads(text, ledger)
    _shrink_mamba(text)
    _shrink_experts(text, ledger)
    for name, cap in CAPS.items():
        if isinstance(text.get(name), int) and text[name] > cap:
            text[name] = cap
    for name in WINDOW_NAMES:
        old = text.get(name)
        if isinstance(old, int) and old > window:
            text[name] = window
            ledger.lose(name, f"{name} {old} → {window}: short texts fill it", [old, window])
    _shrink_rope(text, ledger)
    for name in ("linear_conv_kernel_dim", "conv_L_cache", "mamba_d_conv", "conv_kernel"):
        if isinstance(text.get(name), int):
            ledger.keep(name, f"convolution kernel {text[name]}", text[name])


def shrink_depth(text: dict[str, Any], depth: int, ledger: Ledger, *, repeats: bool = True) -> LayerChoice:
    choice = choose_layers(text, depth, repeats=repeats)
    count = len(choice.layers)
    for name, values in list(per_layer_lists(text, depth)):
        text[name] = [values[i] for i in choice.layers]
    for name in INDEX_FIELDS:
        if isinstance(text.get(name), (list, tuple)):
            text[name] = [choice.layers.index(i) for i in text[name] if i in choice.layers]
    for name, value in list(text.items()):
        if name.startswith("per_layer") and isinstance(value, dict):
            text[name] = {choice.layers.index(int(i)): v for i, v in value.items() if int(i) in choice.layers}
    for name in PREFIX_FIELDS:
        if isinstance(text.get(name), int):
            text[name] = sum(i < text[name] for i in choice.layers)
    _set(text, DEPTH_NAMES, count)
    if isinstance(text.get("max_window_layers"), int):
        text["max_window_layers"] = min(text["max_window_layers"], count)
    pattern = f"pattern of {choice.period}" if choice.period and choice.period > 1 else "every kind of layer"
    ledger.keep("layer kinds", f"{pattern}: {_kinds(text)}", text.get("layer_types"))
    ledger.lose("depth", f"{depth} layers → {count}", [depth, count])
    if not choice.is_prefix:
        ledger.lose("layer order", "one layer of each kind, in order of first appearance", list(choice.layers))
    return choice


def _kinds(text: Mapping[str, Any]) -> str:
    kinds = text.get("layer_types")
    if not isinstance(kinds, list):
        return "all layers alike as far as the config says"
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def _shrink_attention(text: dict[str, Any], ledger: Ledger, forced_hidden: int | None) -> None:
    heads, kv_heads = _get(text, HEAD_NAMES), _get(text, KV_HEAD_NAMES)
    if heads is None:
        _set(text, HIDDEN_NAMES, forced_hidden or HIDDEN)
        return
    new_heads, new_kv = _head_counts(heads, kv_heads or heads)
    head_dim = CAPS["qk_rope_head_dim"] if isinstance(text.get("qk_rope_head_dim"), int) else _head_dim(text)
    if isinstance(text.get("head_dim"), int) or forced_hidden is not None:
        text["head_dim"] = head_dim
        # Some classes check that the heads divide the hidden size even where head_dim is a field of its own.
        step = lcm(new_heads, 8)
        hidden = forced_hidden or max(step, HIDDEN // step * step)
    else:
        if new_heads * head_dim > HIDDEN:
            new_heads, new_kv = _reduced(heads, kv_heads or heads)
        hidden = new_heads * head_dim
    _set(text, HIDDEN_NAMES, hidden)
    _set(text, HEAD_NAMES, new_heads)
    if kv_heads is not None:
        _set(text, KV_HEAD_NAMES, new_kv)
    scalar = text.get("query_pre_attn_scalar")
    if isinstance(scalar, (int, float)):
        text["query_pre_attn_scalar"] = head_dim
    ratio = heads // gcd(heads, kv_heads or heads)
    ledger.keep(
        "head ratio", f"{ratio} query heads for each key/value head ({new_heads}:{new_kv})", [new_heads, new_kv]
    )


def _head_counts(heads: int, kv_heads: int) -> tuple[int, int]:
    """The smallest counts of the same ratio with two key/value heads where the real model has several."""
    query, key = _reduced(heads, kv_heads)
    if kv_heads >= 2 and key == 1:
        query, key = query * 2, key * 2
    return (query * 2, key * 2) if query == key == 2 and heads >= 4 else (query, key)


def _reduced(heads: int, kv_heads: int) -> tuple[int, int]:
    divisor = gcd(heads, kv_heads)
    return heads // divisor, kv_heads // divisor


def _head_dim(text: Mapping[str, Any]) -> int:
    """A head size that leaves ROTARY dimensions to rotate, whatever part of a head is rotated."""
    factor = text.get("partial_rotary_factor")
    rope = text.get("rope_parameters")
    if isinstance(rope, dict):
        factor = rope.get("partial_rotary_factor", factor)
    if isinstance(factor, (int, float)) and 0 < factor < 1:
        return max(16, int(ROTARY / factor) // 2 * 2)
    return 8 if text.get("head_dim") is None else 16


def _shrink_linear_heads(text: dict[str, Any], ledger: Ledger) -> None:
    keys, values = text.get("linear_num_key_heads"), text.get("linear_num_value_heads")
    if not (isinstance(keys, int) and isinstance(values, int)):
        return
    small_values, small_keys = _reduced(values, keys)
    if keys >= 2 and small_keys == 1:
        small_keys, small_values = 2, small_values * 2
    text["linear_num_key_heads"], text["linear_num_value_heads"] = small_keys, small_values
    ledger.keep(
        "linear head ratio", f"linear key to value heads {keys}:{values} = {small_keys}:{small_values}",
        [small_keys, small_values],
    )  # fmt: skip


def _shrink_mamba(text: dict[str, Any]) -> None:
    """Inner width = heads × head size, in whichever of the fields the config has."""
    hidden = require(text, HIDDEN_NAMES)
    heads_name = next((n for n in ("mamba_n_heads", "mamba_num_heads") if isinstance(text.get(n), int)), None)
    if heads_name is None:
        return
    inner = hidden * text.get("mamba_expand", text.get("expand", 1))
    if isinstance(text.get("mamba_d_ssm"), int):
        inner = text["mamba_d_ssm"] = hidden
    text[heads_name] = 4
    for name in ("mamba_d_head", "mamba_head_dim"):
        if name in text:
            text[name] = inner // 4
    for name in ("mamba_n_groups", "n_groups"):
        if isinstance(text.get(name), int):
            text[name] = min(text[name], 2)


def _shrink_experts(text: dict[str, Any], ledger: Ledger) -> None:
    experts, chosen = _get(text, EXPERT_NAMES), _get(text, EXPERTS_PER_TOKEN_NAMES)
    if experts is None or experts <= 8:
        return
    groups = text.get("n_group")
    few = 8
    if isinstance(groups, int) and groups > 1:
        text["n_group"], text["topk_group"] = 2, 1
    _set(text, EXPERT_NAMES, few)
    if chosen is not None:
        _set(text, EXPERTS_PER_TOKEN_NAMES, min(chosen, 2))
    ledger.lose("experts", f"{experts} experts, {chosen} a token → {few}, {min(chosen or 2, 2)}", [experts, few])


def _shrink_rope(text: dict[str, Any], ledger: Ledger) -> None:
    head_dim = text.get("head_dim") or require(text, HIDDEN_NAMES) // (_get(text, HEAD_NAMES) or 1)
    scaled = False
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.get(name)
        if not isinstance(rope, dict):
            continue
        nested = [v for v in rope.values() if isinstance(v, dict)]
        for part in nested or [rope]:
            scaled |= part.get("rope_type", part.get("type", "default")) not in ("default", None)
            factor = part.get("partial_rotary_factor", text.get("partial_rotary_factor")) or 1.0
            pairs = int(head_dim * factor) // 2
            _shrink_sections(part, pairs, ledger)
            for key in ("short_factor", "long_factor"):
                if isinstance(part.get(key), list):
                    part[key] = part[key][:pairs]
            if factor != 1.0 and name == "rope_parameters":
                ledger.keep("partial rotary", f"{factor:g} of each head is rotated ({2 * pairs} of {head_dim})", factor)
    limit = text.get("max_position_embeddings")
    if isinstance(limit, int) and limit > 4096 and not scaled:
        text["max_position_embeddings"] = 4096


def _shrink_sections(rope: dict[str, Any], pairs: int, ledger: Ledger) -> None:
    sections = rope.get("mrope_section")
    if not isinstance(sections, list) or sum(sections) <= pairs or pairs < len(sections):
        return
    small = [max(1, s * pairs // sum(sections)) for s in sections]
    # What rounding left over goes to the first section, as the real ones are largest first.
    small[0] += pairs - sum(small)
    rope["mrope_section"] = small
    ledger.keep("mrope sections", f"mrope sections {sections} → {small}", small)


def _shrink_wrapper(tiny: dict[str, Any], text: dict[str, Any], hidden: int, ledger: Ledger) -> None:
    """The parts around the language model: towers become one thin layer, widths that meet the text part follow it."""
    for name, part in tiny.items():
        if not (isinstance(part, dict) and str(name).endswith("_config")) or part is text:
            continue
        if not any(isinstance(part.get(n), int) for n in (*HIDDEN_NAMES, *DEPTH_NAMES, "depth")):
            continue
        _shrink_tower(part, hidden)
        ledger.lose(name, f"{name.removesuffix('_config')} tower: one thin layer, never run")
    if isinstance(tiny.get("mm_tokens_per_image"), int):
        tiny["mm_tokens_per_image"] = 4
    ledger.keep("wrapper", "the multimodal wrapper around the language model")


def _shrink_tower(part: dict[str, Any], hidden: int) -> None:
    for name in (*DEPTH_NAMES, "depth"):
        if isinstance(part.get(name), int):
            part[name] = 1
    _set(part, HIDDEN_NAMES, 32)
    _set(part, HEAD_NAMES, 2)
    for name, value in (("intermediate_size", 32), ("num_position_embeddings", 16), ("head_dim", 16)):
        if isinstance(part.get(name), int):
            part[name] = value
    for name in ("out_hidden_size", "projection_dim", "output_hidden_size"):
        if isinstance(part.get(name), int):
            part[name] = hidden
    if isinstance(part.get("patch_size"), int):
        part["patch_size"] = 4
    if isinstance(part.get("image_size"), int):
        part["image_size"] = 16
    for name in ("deepstack_visual_indexes", "fullatt_block_indexes"):
        if isinstance(part.get(name), list):
            part[name] = [0] if part[name] else []


def _token_map(config: Mapping[str, Any], vocab: int) -> tuple[dict[int, int], int]:
    """Moves every special id to the top of the small vocabulary, in order; one more slot is a draft's mask token."""
    ids = sorted({token for _, _, tokens in _token_fields(dict(config)) for token in tokens})
    top = vocab - len(ids)
    return {token: top + i for i, token in enumerate(ids)}, top - 1


def _move_tokens(config: dict[str, Any], token_ids: Mapping[int, int]) -> None:
    for holder, name, tokens in list(_token_fields(config)):
        moved = [token_ids[token] for token in tokens]
        holder[name] = moved if isinstance(holder[name], list) else moved[0]


def _token_fields(config: dict[str, Any]) -> list[tuple[dict[str, Any], str, list[int]]]:
    found = []
    for name, value in config.items():
        if isinstance(value, dict):
            found += _token_fields(value)
        elif isinstance(name, str) and name.endswith(("_token_id", "_token_index")):
            tokens = value if isinstance(value, list) else [value]
            if tokens and all(isinstance(token, int) and token >= 0 for token in tokens):
                found.append((config, name, list(tokens)))
    return found


def drop_quantisation(config: dict[str, Any], ledger: Ledger) -> None:
    for part in (config, text_part(config)):
        if part.pop("quantization_config", None) is not None:
            ledger.lose("quantisation", "the quantisation of the weights")


def _get(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if isinstance(config.get(name), int):
            return int(config[name])
    return None


def require(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    value = _get(config, names)
    if value is None:
        raise ValueError(f"the config has no {names[0]}")
    return value


def _set(config: dict[str, Any], names: tuple[str, ...], value: int) -> None:
    for name in names:
        if isinstance(config.get(name), int):
            config[name] = value
