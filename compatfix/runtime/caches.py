"""Making caches that can be verified on: with the states that the model keeps, and with every token stored."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, cache_utils
from transformers.cache_utils import DynamicLayer

from .slots import COUNT, holds_keys, state_slots, told_by_layers


def new_cache(model_or_config: Any = None) -> Any:
    """An empty cache for a target, a draft or a config; without one, a plain DynamicCache.

    Layers with a window store the whole past (the mask does the windowing), so that rejected tokens can be taken back.
    `get_seq_length()` of the cache is the number of its tokens, also where the library's class does not tell it.
    """
    if model_or_config is None:
        return DynamicCache()
    config = model_or_config.config if isinstance(model_or_config, nn.Module) else model_or_config
    own = _own_cache_class(model_or_config, config)
    if own is not None:
        cache = _construct(own, model_or_config, _text_config(config))
        _tell(cache)
        return cache
    if "config" not in inspect.signature(DynamicCache.__init__).parameters:
        return DynamicCache()
    cache = DynamicCache(config=config)
    store_every_token(cache)
    return cache


def store_every_token(cache: Any) -> None:
    """Turns window layers that have lost nothing yet into layers that store every token, and lets the cache count."""
    _tell(cache)
    layers = cache.__dict__.get("layers")
    for index, layer in enumerate(layers or []):
        if not isinstance(getattr(layer, "sliding_window", None), int) or hasattr(layer, "max_cache_len"):
            continue
        whole = _full_length_layer(layer)
        if whole is None or layers is None:
            continue
        seen = layer.__dict__.get("cumulative_length", 0)
        if getattr(layer, "keys", None) is not None and layer.keys.ndim >= 3:
            if layer.keys.shape[-2] != seen:
                continue  # tokens are gone; check_complete will refuse
            shared = {k: v for k, v in layer.__dict__.items() if k in whole.__dict__ or k in ("device", "dtype")}
            whole.__dict__.update(shared)
        layers[index] = whole


def is_attention_only(cache: Any) -> bool:
    """Whether the cache holds keys and values and no state."""
    return not state_slots(cache)


def _full_length_layer(layer: Any) -> Any:
    """The layer of the same kind without a window: plain keys and values, or those beside a recurrent state."""
    if not hasattr(layer, "recurrent_states"):
        return DynamicLayer()
    hybrid = getattr(cache_utils, "LinearAttentionAndFullAttentionLayer", None)
    return None if hybrid is None else hybrid(number_of_states=getattr(layer, "number_of_states", 1))


def _tell(cache: Any) -> None:
    """Gives `cache` a `get_seq_length` that tells how many tokens it holds, and mask sizes to match.

    The library's caches ask layer 0, which in some classes keeps its states elsewhere (MiniMax): then a chain behind a
    filled cache is masked as if it were a prompt. A cache whose layers keep states only is given a count of its own,
    which each call of the target moves on.
    """
    if not isinstance(cache.__dict__.get("layers"), list) or getattr(cache, "_compatfix_tells", False):
        return
    try:
        cache.get_seq_length()
        if type(cache) is DynamicCache:
            return
    except ValueError:
        if state_slots(cache):
            return  # nobody counted what it holds; `length` will refuse
        cache.__dict__[COUNT] = 0
    cache.__class__ = _telling_class(type(cache))  # type: ignore[arg-type]


@functools.cache
def _telling_class(cls: Any) -> Any:
    class Telling(cls):  # type: ignore[misc]
        _compatfix_tells = True

        def get_seq_length(self, layer_idx: int = 0) -> int:
            if layer_idx == 0:
                return told_by_layers(self)
            told: int = super().get_seq_length(layer_idx)
            return told

        def get_mask_sizes(self, query: Any, layer_idx: int) -> tuple[int, int]:
            if layer_idx == 0:
                layer_idx = next((i for i, layer in enumerate(self.layers) if holds_keys(layer)), 0)
            sizes: tuple[int, int] = super().get_mask_sizes(query, layer_idx)
            return sizes

    Telling.__name__, Telling.__qualname__, Telling.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Telling


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _own_cache_class(model_or_config: Any, config: Any) -> type | None:
    """The cache class that the model's own module defines: where there is one, the model needs it."""
    if isinstance(model_or_config, nn.Module):
        names = [cls.__module__ for cls in type(model_or_config).__mro__ if issubclass(cls, nn.Module)]
    else:
        names = [type(config).__module__.replace(".configuration_", ".modeling_")]
    for name in names:
        module = sys.modules.get(name) or _imported(name)
        for value in vars(module).values() if module is not None else ():
            is_cache = isinstance(value, type) and value.__name__.endswith("Cache")
            if is_cache and value.__module__ == name and hasattr(value, "get_seq_length"):
                found: type = value
                return found
    return None


def _imported(name: str) -> Any:
    if ".modeling_" not in name:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _construct(cls: type, model_or_config: Any, config: Any) -> Any:
    """Such classes take a config, and on some versions a batch size, a dtype and a device."""
    dtype, device = torch.float32, torch.device("cpu")
    if isinstance(model_or_config, nn.Module):
        first = next(model_or_config.parameters(), None)
        if first is not None:
            dtype, device = first.dtype, first.device
    known = {
        "config": config,
        "batch_size": 1,
        "max_batch_size": 1,
        "dtype": dtype,
        "device": device,
        "devices": [device] * getattr(config, "num_hidden_layers", 0),
    }
    parameters = inspect.signature(cls).parameters
    return cls(**{name: value for name, value in known.items() if name in parameters})
