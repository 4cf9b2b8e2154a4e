"""Caches as the library makes them for a model, in any version: which class, and what each layer keeps."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from compatfix.profiles import CacheProfile

# Lists by layer in the caches of a model's own class, as versions before one common cache had them.
OWN_LISTS = {
    "keys": "key_cache",
    "values": "value_cache",
    "conv_states": "conv_states",
    "recurrent_states": "recurrent_states",
}


def cache_argument_of(model: Any) -> str:
    """The name under which the forward takes its cache."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters and "past_key_values" not in parameters else "past_key_values"


def cache_of(output: Any) -> Any:
    """The cache in a model's output, under the name that this version gives it."""
    cache = getattr(output, "cache", None)
    return getattr(output, "past_key_values", None) if cache is None else cache


def cache_class_of(made: Any) -> Any:
    """The class to make such a cache with: DynamicCache, or a model's own."""
    from transformers import DynamicCache

    kind = type(made)
    return DynamicCache if made is None or issubclass(DynamicCache, kind) else kind


def empty_cache(kind: Any, config: Any) -> Any:
    """An empty cache of that class, from the config where its constructor takes one, as generation makes it."""
    return kind(config=config) if "config" in inspect.signature(kind).parameters else kind()


def layers_of(cache: Any, layer_types: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Each layer with the name of its kind: its class, or the config's word for it in a cache that has no layers."""
    layers = getattr(cache, "layers", None)
    if layers is not None:
        yield from ((type(layer).__name__, layer) for layer in layers)
        return
    for index, kind in enumerate(layer_types):
        parts = {name: _item(getattr(cache, source, None), index) for name, source in OWN_LISTS.items()}
        yield kind, SimpleNamespace(**{name: part for name, part in parts.items() if part is not None})


def describe_cache(cache: Any, layer_types: tuple[str, ...] = ()) -> CacheProfile:
    named = list(layers_of(cache, layer_types))
    own = getattr(cache, "layers", None) is None
    kinds = [_kind_by_name(name) if own else layer_kind(layer) for name, layer in named]
    classes = Counter(name for name, _ in named)
    first = kinds[0] if kinds else "none"
    return CacheProfile(type(cache).__name__, dict(classes), dict(Counter(kinds)), first, tuple(kinds))


def layer_kind(layer: Any) -> str:
    """What a layer of a cache keeps, by what it can do: its class may be new, its methods are not."""
    linear = any(hasattr(layer, name) for name in ("recurrent_states", "conv_states", "update_recurrent_state"))
    attention = hasattr(layer, "keys") or ("update" in dir(type(layer)) and not linear)
    if linear and hasattr(layer, "keys"):
        return "hybrid"
    if linear:
        return "linear"
    if getattr(layer, "is_sliding", False):
        return "sliding"
    return "full" if attention else "none"


def layer_types_of(config: Any) -> tuple[str, ...]:
    return tuple(getattr(config.get_text_config(), "layer_types", None) or ())


def _kind_by_name(name: str) -> str:
    if any(word in name for word in ("linear", "mamba", "conv", "recurrent")):
        return "linear"
    return "sliding" if "sliding" in name else "full"


def _item(parts: Any, index: int) -> Any:
    return parts[index] if isinstance(parts, (list, tuple)) and index < len(parts) else None
