"""One view of every cache layout: which tensors a cache holds, where, and along which axis tokens lie.

Caches are read by what they hold, not by their class: `Cache.layers` (its layers keep `keys`, `values`, and states as
tensors or dicts of tensors) or a model's own class with lists or dicts indexed by layer (`key_cache`, `conv_states`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .refusal import RuntimeRefusal

# Tensors that grow by one entry per token, with the axis on which they grow. Every other tensor is a state.
TOKEN_AXES = {
    "keys": -2,
    "values": -2,
    "key_cache": -2,
    "value_cache": -2,
    "indexer_keys": 1,
    "indexer_position_ids": -1,
}
# Plain counters of stored tokens that some layers and caches keep beside their tensors.
COUNT = "_compatfix_count"  # this package's own, on caches that keep states only and count nothing
COUNTERS = ("cumulative_length", "_seen_tokens", COUNT)


@dataclass(frozen=True)
class Slot:
    """A place in a cache that holds one tensor."""

    layer: int
    name: str
    holder: Any
    key: Any
    token_axis: int | None

    @property
    def tensor(self) -> Tensor:
        tensor = self.holder[self.key]
        assert isinstance(tensor, Tensor)
        return tensor

    def put(self, tensor: Tensor) -> None:
        self.holder[self.key] = tensor

    @property
    def label(self) -> tuple[int, str]:
        return self.layer, self.name


def token_slots(cache: Any) -> list[Slot]:
    """Keys, values and whatever else grows by one entry per token."""
    return [slot for slot in _slots(cache) if slot.token_axis is not None]


def state_slots(cache: Any) -> list[Slot]:
    """Conv windows, recurrent states, and any tensor whose size does not follow the number of tokens."""
    return [slot for slot in _slots(cache) if slot.token_axis is None]


def length(cache: Any) -> int:
    """Number of tokens that the cache stands for."""
    if COUNT in cache.__dict__:
        counted: int = cache.__dict__[COUNT]
        return counted
    try:
        told = int(cache.get_seq_length()) or told_by_layers(cache)
        # Some model-specific caches report the shape of a placeholder while they are empty.
        return told if told == 0 or token_slots(cache) or any_state(cache) else 0
    except (AttributeError, ValueError, IndexError, TypeError):
        sizes = {_size(slot) for slot in token_slots(cache)}
        if len(sizes) > 1 or (not sizes and state_slots(cache)):
            raise RuntimeRefusal(
                f"a {type(cache).__name__} does not tell how many tokens it holds; it cannot be rolled back. "
                "Make the cache with new_cache(target), and fill it through verify"
            ) from None
        return sizes.pop() if sizes else 0


def check_complete(cache: Any) -> None:
    """Refuses a cache that has dropped tokens (a filled window) or reserved room for them (a static cache)."""
    held = length(cache)
    for slot in token_slots(cache):
        if _size(slot) != held:
            raise RuntimeRefusal(
                f"layer {slot.layer} of this {type(cache).__name__} stores {_size(slot)} of {held} tokens; "
                "rejected tokens cannot be taken back from it. Make the cache with new_cache(target)"
            )


def keep_tokens(cache: Any, start: int, path: Sequence[int]) -> None:
    """Keeps the first `start` tokens and, behind them, the tokens `start + i` for i in `path`.

    Nothing before `start` is copied or written to: the kept tokens are moved within their tensors.
    """
    slots = token_slots(cache)
    if list(path) != list(range(len(path))):
        _move(slots, start, path)
    for slot in slots:
        assert slot.token_axis is not None
        slot.put(slot.tensor.narrow(slot.token_axis, 0, start + len(path)))
    _set_counters(cache, start + len(path))


class Snapshot:
    """What a cache holds now, to be put back after an exception or a rejected token.

    Tensors that grow by one entry per token are not kept but measured: putting them back is cutting them, so that a
    long context is not held twice. States are kept by reference, or cloned (`own_states`) where the forward to come
    updates them in place.
    """

    def __init__(self, cache: Any, own_states: bool) -> None:
        layers = cache.__dict__.get("layers")
        self._layers = None if layers is None else [(layer, _saved(layer.__dict__, own_states)) for layer in layers]
        self._rest = _saved({k: v for k, v in cache.__dict__.items() if k != "layers"}, own_states)

    def restore(self, cache: Any) -> None:
        if self._layers is not None:
            for layer, saved in self._layers:
                _restore(layer.__dict__, saved)
            cache.layers[:] = [layer for layer, _ in self._layers]
        layers = cache.__dict__.get("layers")
        _restore(cache.__dict__, self._rest)
        if layers is not None:
            cache.__dict__["layers"] = layers


def told_by_layers(cache: Any) -> int:
    """The longest count that a layer tells, or this package's own where no layer keeps keys.

    The library's caches ask their first layer only, which may be one that keeps its states elsewhere (MiniMax).
    """
    told: int = cache.__dict__.get(COUNT, 0)
    for layer in cache.__dict__.get("layers") or []:
        if holds_keys(layer):
            told = max(told, int(layer.get_seq_length()))
    return told


def holds_keys(layer: Any) -> bool:
    keys = getattr(layer, "keys", None)
    return isinstance(keys, Tensor) and keys.ndim >= 3 and hasattr(layer, "get_seq_length")


def _move(slots: Sequence[Slot], start: int, path: Sequence[int]) -> None:
    """Writes the tokens `start + i`, for i in `path`, behind the first `start` ones, in place."""
    rows: dict[torch.device, Tensor] = {}
    moved: list[Tensor] = []
    for slot in slots:
        assert slot.token_axis is not None
        device = slot.tensor.device
        if device not in rows:
            rows[device] = torch.tensor([start + i for i in path], device=device)
        moved.append(slot.tensor.index_select(slot.token_axis, rows[device]))
    # All are read before any is written, since layers may share a tensor.
    for slot, kept in zip(slots, moved, strict=True):
        assert slot.token_axis is not None
        # Tensors made in inference mode may be written to in that mode only.
        with torch.inference_mode(slot.tensor.is_inference()), torch.no_grad():
            slot.tensor.narrow(slot.token_axis, start, len(path)).copy_(kept)


def any_state(cache: Any) -> bool:
    """Whether a state holds anything but zeros."""
    return any(bool(slot.tensor.any()) for slot in state_slots(cache))


def _slots(cache: Any) -> Iterator[Slot]:
    layers = cache.__dict__.get("layers")
    if isinstance(layers, list):
        for index, layer in enumerate(layers):
            for name, value in list(layer.__dict__.items()):
                if isinstance(value, Tensor):
                    yield from _slot(index, name, name, layer.__dict__, name)
                else:
                    for key in _tensor_keys(value):
                        yield from _slot(index, f"{name}.{key}", name, value, key)
    for name, value in list(cache.__dict__.items()):
        if value is layers:
            continue
        if isinstance(value, Tensor):
            yield from _slot(-1, name, name, cache.__dict__, name)
        else:
            for key in _tensor_keys(value):
                yield from _slot(key if isinstance(key, int) else -1, name, name, value, key)


def _slot(layer: int, name: str, kind: str, holder: Any, key: Any) -> Iterator[Slot]:
    tensor = holder[key]
    axis = TOKEN_AXES.get(kind)
    # Placeholders of layers that keep nothing have fewer dimensions; 0-d tensors are constants such as a window size.
    if (axis is None and tensor.ndim > 0) or (axis is not None and tensor.ndim >= 3):
        yield Slot(layer, name, holder, key, axis)


def _tensor_keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [key for key, item in value.items() if isinstance(item, Tensor)]
    if isinstance(value, list):
        return [key for key, item in enumerate(value) if isinstance(item, Tensor)]
    return []


def _size(slot: Slot) -> int:
    assert slot.token_axis is not None
    return slot.tensor.shape[slot.token_axis]


def _set_counters(cache: Any, count: int) -> None:
    for owner in [cache, *(cache.__dict__.get("layers") or [])]:
        for name in COUNTERS:
            if type(owner.__dict__.get(name)) is int:
                owner.__dict__[name] = count


@dataclass(frozen=True)
class _Cut:
    """Stands for a tensor that can be had back by cutting its successor."""

    axis: int
    size: int


def _saved(value: Any, own_states: bool, kind: str = "") -> Any:
    if isinstance(value, Tensor):
        axis = TOKEN_AXES.get(kind)
        if axis is not None and value.ndim >= 3:
            return _Cut(axis, value.shape[axis])
        return value.clone() if own_states else value
    if isinstance(value, dict):
        return {k: _saved(v, own_states, kind or str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_saved(v, own_states, kind) for v in value]
    return value


def _restore(current: dict[str, Any], saved: dict[str, Any]) -> None:
    restored = {key: _put_back(current.get(key), value) for key, value in saved.items()}
    current.clear()
    current.update(restored)


def _put_back(current: Any, saved: Any) -> Any:
    if isinstance(saved, _Cut):
        assert isinstance(current, Tensor)
        return current.narrow(saved.axis, 0, saved.size)
    if isinstance(saved, dict):
        now = current if isinstance(current, dict) else {}
        return {k: _put_back(now.get(k), v) for k, v in saved.items()}
    if isinstance(saved, list):
        then = current if isinstance(current, list) else []
        return [_put_back(then[i] if i < len(then) else None, v) for i, v in enumerate(saved)]
    return saved
