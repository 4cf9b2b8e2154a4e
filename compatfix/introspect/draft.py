"""A draft's profile from its config alone. Torch-free; a known shape needs no code of the draft's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatfix.introspect.configfile import is_draft, read_config
from compatfix.introspect.dtypes import bytes_of, dtype_of
from compatfix.profiles import DraftProfile

NESTED = "dflash_config"
NEEDED = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")


def read_draft(path: str | Path) -> DraftProfile:
    """Raises UsageError where there is no readable config; a config that is no draft's gives a profile that says so."""
    return describe_draft(read_config(path), str(path))


def describe_draft(config: Mapping[str, Any], path: str = "") -> DraftProfile:
    raw_nested = config.get(NESTED)
    nested: Mapping[str, Any] = raw_nested if isinstance(raw_nested, Mapping) else {}
    missing = [name for name in NEEDED if not isinstance(config.get(name), int)]
    if not is_draft(dict(config)):
        missing += [f"{NESTED} or num_target_layers"]
    number = {name: _whole(config.get(name)) or 0 for name in (*NEEDED, "intermediate_size")}
    heads = number["num_attention_heads"]
    head_dim = _whole(config.get("head_dim")) or (number["hidden_size"] // heads if heads else 0)
    kv_heads = _whole(config.get("num_key_value_heads")) or heads
    target_layers = _whole(config.get("num_target_layers")) or _whole(nested.get("num_target_layers"))
    ids, ids_at = _layer_ids(config, nested, target_layers, number["num_hidden_layers"])
    block, block_at = _placed(config, nested, "block_size")
    mask, mask_at = _placed(config, nested, "mask_token_id")
    kinds = config.get("layer_types") or []
    dtype = dtype_of(config)
    return DraftProfile(
        path=path,
        num_layers=number["num_hidden_layers"],
        hidden_size=number["hidden_size"],
        vocab_size=number["vocab_size"],
        intermediate_size=number["intermediate_size"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block,
        block_size_at=block_at,
        mask_token_id=mask,
        mask_token_at=mask_at,
        layer_ids=ids,
        layer_ids_at=ids_at,
        num_target_layers=target_layers,
        sliding_layers=sum("sliding" in str(kind) for kind in kinds) if isinstance(kinds, list) else 0,
        sliding_window=_whole(config.get("sliding_window")),
        rope_theta=_rope_theta(config),
        dtype=dtype,
        dtype_bytes=bytes_of(dtype),
        parameters=_parameters(number, heads, kv_heads, head_dim, len(ids)),
        embedding_scale=_real(config, nested, "input_embedding_scale"),
        logit_softcap=_real(config, nested, "final_logit_softcapping"),
        remote_code=bool(config.get("auto_map")),
        missing=tuple(missing),
    )


def default_layer_ids(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """The published rule for a config without target_layer_ids: evenly from 1 to n - 3, or the middle for one."""
    if draft_layers == 1:
        return (target_layers // 2,)
    start, end = 1, target_layers - 3
    return tuple(round(start + i * (end - start) / (draft_layers - 1)) for i in range(draft_layers))


def _layer_ids(
    config: Mapping[str, Any], nested: Mapping[str, Any], target_layers: int | None, layers: int
) -> tuple[tuple[int, ...], str]:
    for holder, place in ((nested, NESTED), (config, "top")):
        ids = holder.get("target_layer_ids")
        if isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids):
            return tuple(ids), place
    if target_layers and layers:
        return default_layer_ids(target_layers, layers), "nowhere"
    return (), "nowhere"


def _placed(config: Mapping[str, Any], nested: Mapping[str, Any], name: str) -> tuple[int | None, str]:
    top, below = _whole(config.get(name)), _whole(nested.get(name))
    if top is not None and below is not None:
        return below, "both"
    if below is not None:
        return below, NESTED
    return top, "top" if top is not None else "nowhere"


def _parameters(number: Mapping[str, int], heads: int, kv_heads: int, head_dim: int, features: int) -> int:
    """Weights of the published draft: Qwen3 layers, fc over the features, two norms; embeddings and head are shared."""
    hidden = number["hidden_size"]
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads) + 2 * head_dim
    mlp = 3 * hidden * number["intermediate_size"]
    return number["num_hidden_layers"] * (attention + mlp + 2 * hidden) + features * hidden * hidden + 2 * hidden


def _rope_theta(config: Mapping[str, Any]) -> float | None:
    rope = config.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    value = config.get("rope_theta", theta) if theta is None else theta
    return float(value) if isinstance(value, (int, float)) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(config: Mapping[str, Any], nested: Mapping[str, Any], name: str) -> float | None:
    value = nested.get(name, config.get(name))
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
