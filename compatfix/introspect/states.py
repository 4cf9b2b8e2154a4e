"""What one sequence keeps in the cache, counted by a forward of the real model on the meta device: shapes, no values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from compatfix.introspect.probes.bench import cache_argument_of
from compatfix.introspect.skeleton import config_cache
from compatfix.profiles import StateProfile

TOKENS = 2
FP32 = 4


def count_states(skeleton: Any) -> StateProfile:
    """Runs a few tokens through the skeleton and measures its cache; falls back to arithmetic over the config."""
    try:
        cache = config_cache(skeleton.config)
        ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
        with torch.inference_mode():
            skeleton(input_ids=ids, use_cache=True, **{cache_argument_of(skeleton): cache})
        return _count(cache, skeleton.dtype)
    except Exception:
        # Masks and experts that look at values cannot run without them; attention-only arithmetic is what is left.
        return _from_config(skeleton.config.get_text_config(), skeleton.dtype)


def _count(cache: Any, dtype: torch.dtype) -> StateProfile:
    kv = window = recurrent = conv = records = 0
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor):
            per_token = (_bytes(keys) + _bytes(values)) // TOKENS
            limit = getattr(layer, "sliding_window", None)
            if getattr(layer, "is_sliding", False) and isinstance(limit, int):
                window += per_token * limit
            else:
                kv += per_token
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
    full = sum("attention" in kind and "linear" not in kind for kind in kinds) - sliding
    window = sliding * per_layer * (getattr(text, "sliding_window", None) or 0)
    return StateProfile(full * per_layer, window, 0, 0, 0, counted=False)


def _tensors(states: Any) -> Iterator[torch.Tensor]:
    """A state is a tensor in older versions and a dict of tensors in newer ones."""
    values = states.values() if isinstance(states, dict) else [states]
    yield from (value for value in values if isinstance(value, torch.Tensor))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize
