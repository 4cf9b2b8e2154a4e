"""What one sequence keeps in the cache, counted by a forward of the real widths on the meta device: shapes only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from compatfix.introspect.caches import cache_class_of, cache_of, layer_types_of, layers_of
from compatfix.introspect.classes import Resolved
from compatfix.introspect.skeleton import build_skeleton
from compatfix.introspect.slices import slice_of
from compatfix.profiles import StateProfile

TOKENS = 2
FP32 = 4
NOTHING = StateProfile(0, 0, 0, 0, 0, counted=True)


def count_states(resolved: Resolved, dtype: str) -> StateProfile:
    """Runs tokens through a few layers of the real width, one pattern of kinds, and measures what each kind caches.

    Falls back to arithmetic over the config where the forward cannot run without values.
    """
    wanted = getattr(torch, dtype, torch.float32)
    try:
        config = type(resolved.config).from_dict(slice_of(resolved.config.to_dict()).config)
        shallow = build_skeleton(replace(resolved, config=config), dtype)
        ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
        with torch.inference_mode():
            cache = cache_of(shallow(input_ids=ids, use_cache=True))
        by_kind = {name: _count(layer, wanted) for name, layer in layers_of(cache, layer_types_of(config))}
        whole = cache_class_of(cache)(config=resolved.config)
        return _sum(by_kind, Counter(name for name, _ in layers_of(whole, layer_types_of(resolved.config))))
    except Exception:
        # Masks and experts that look at values cannot run on shapes; attention-only arithmetic is what is left.
        return _from_config(resolved.config.get_text_config(), wanted)


def _sum(by_kind: dict[str, StateProfile], counts: Counter[str]) -> StateProfile:
    total = NOTHING
    for kind, count in counts.items():
        one = by_kind[kind]
        total = StateProfile(
            total.kv_per_token + count * one.kv_per_token,
            total.window_bytes + count * one.window_bytes,
            total.recurrent + count * one.recurrent,
            total.conv + count * one.conv,
            total.record_per_node + count * one.record_per_node,
            counted=True,
        )
    return total


def _count(layer: Any, dtype: torch.dtype) -> StateProfile:
    kv = window = recurrent = conv = records = 0
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor):
        kv = (_bytes(keys) + _bytes(values)) // TOKENS
        limit = getattr(layer, "sliding_window", None)
        if getattr(layer, "is_sliding", False) and isinstance(limit, int):
            kv, window = 0, kv * limit
    for state in _tensors(getattr(layer, "recurrent_states", None)):
        recurrent += _bytes(state)
        if state.ndim == 4:
            _, heads, key_dim, value_dim = state.shape
            records += heads * (key_dim + value_dim + 1) * FP32
    for state in _tensors(getattr(layer, "conv_states", None)):
        conv += _bytes(state)
        records += state.shape[1] * dtype.itemsize if state.ndim == 3 else 0
    return StateProfile(kv, window, recurrent, conv, records, counted=True)


def _from_config(text: Any, dtype: torch.dtype) -> StateProfile:
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    per_layer = 2 * heads * head_dim * dtype.itemsize
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    sliding = sum("sliding" in kind for kind in kinds)
    linear = sum("linear" in kind for kind in kinds)
    full = sum("attention" in kind for kind in kinds) - sliding - linear
    window = sliding * per_layer * (getattr(text, "sliding_window", None) or 0)
    recurrent, records = _linear_from_config(text)
    return StateProfile(full * per_layer, window, linear * recurrent, 0, linear * records, counted=False)


def _linear_from_config(text: Any) -> tuple[int, int]:
    """Bytes of one gated-delta layer's state and of a node's record, where the config has its fields; else nothing."""
    names = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    sizes = [getattr(text, name, None) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        return 0, 0
    heads, key_dim, value_dim = (int(size or 0) for size in sizes)
    return heads * key_dim * value_dim * FP32, heads * (key_dim + value_dim + 1) * FP32


def _tensors(states: Any) -> Iterator[torch.Tensor]:
    """A state is a tensor in older versions and a dict of tensors in newer ones."""
    values = states.values() if isinstance(states, dict) else [states]
    yield from (value for value in values if isinstance(value, torch.Tensor))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize
