"""What a key-value cache holds, by layer and name, so that two caches can be compared or one tampered with.

The layouts of several library versions are read by what the object has: layers with keys, values and states (tensors or
dicts of tensors), or flat lists.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

RUNTIME = "compatfix_runtime"
SEQUENCE = ("keys", "values")
STATES = ("conv_states", "recurrent_states", "ssm_states")
ARGUMENTS = ("past_key_values", "cache", "past_key_value", "cache_params")
FLAT = {"key_cache": "keys", "value_cache": "values", "conv_states": "conv_states", "ssm_states": "ssm_states"}


@dataclass(frozen=True)
class Slot:
    """Where one tensor of a cache lies; `holder[key]` or `holder.key` reads and writes it."""

    layer: int
    name: str
    holder: Any
    key: Any

    @property
    def tensor(self) -> Tensor:
        value = self.holder[self.key] if isinstance(self.holder, (dict, list)) else getattr(self.holder, self.key)
        assert isinstance(value, Tensor)
        return value

    def write(self, value: Tensor) -> None:
        if isinstance(self.holder, (dict, list)):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)

    @property
    def is_sequence(self) -> bool:
        return self.name in SEQUENCE


@dataclass(frozen=True)
class CacheDifference:
    """By how much one tensor of two caches differs; infinitely where it cannot be compared."""

    layer: int
    tensor: str
    largest: float
    scale: float
    note: str = ""

    @property
    def relative(self) -> float:
        return self.largest / max(1.0, self.scale)


def slots(cache: Any) -> Iterator[Slot]:
    """Every tensor that holds something, by layer."""
    layers = getattr(cache, "layers", None)
    if layers is not None:
        for index, layer in enumerate(layers):
            for name in (*SEQUENCE, *STATES):
                value = getattr(layer, name, None)
                if isinstance(value, Tensor) and value.numel():
                    yield Slot(index, name, layer, name)
                elif isinstance(value, Mapping):
                    for key, tensor in value.items():
                        if isinstance(tensor, Tensor) and tensor.numel():
                            yield Slot(index, name, value, key)
        return
    for field, name in {**FLAT, "recurrent_states": "recurrent_states"}.items():
        values = getattr(cache, field, None)
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values or ())
        for index, tensor in pairs:
            if isinstance(tensor, Tensor) and tensor.numel():
                yield Slot(index, name, values, index)


def snapshot(cache: Any) -> dict[tuple[int, str, Any], Tensor]:
    """Copies of every tensor; states are updated in place, so references would lie."""
    return {_key(slot): slot.tensor.detach().clone() for slot in slots(cache)}


def first_difference(
    seen: Mapping[tuple[int, str, Any], Tensor], plain: Any, length: int, tolerance: float
) -> CacheDifference | None:
    """The first tensor, in the order of layers, that is further off than `tolerance`."""
    return next((found for found in differences(seen, plain, length) if found.relative > tolerance), None)


def settled(cache: Any, length: int) -> Any | None:
    """A copy of a cache, settled; None where the runtime refuses."""
    copied = copy.deepcopy(cache)
    return copied if settle(copied, length) else None


def settle(cache: Any, length: int) -> bool:
    """Commits a chain that is still pending in the runtime, as the cache's next verification would.

    `length` is the number of tokens that were committed. Inside a verification the runtime may withhold states, so this
    is for the time before. Returns False where the runtime refuses, which leaves the cache as it is.
    """
    runtime = sys.modules.get(RUNTIME)
    if runtime is None:
        return True
    try:
        runtime.crop_to(cache, length)
    except Exception:
        return False
    return True


def differences(seen: Mapping[tuple[int, str, Any], Tensor], plain: Any, length: int) -> Iterator[CacheDifference]:
    """Compares a snapshot with the cache of plain decoding of the same `length` tokens, tensor by tensor.

    A sliding layer may store its window only, a recording layer more history than is needed: the common tail counts.
    Keys and values that are too short or too long otherwise are a difference of their own.
    """
    for slot in sorted(slots(plain), key=lambda s: s.layer):
        other = seen.get(_key(slot))
        expected = slot.tensor[:1].float()
        if other is None:
            yield CacheDifference(slot.layer, slot.name, float("inf"), 0.0, "missing")
            continue
        got = other[:1].float()
        axis = -2 if slot.is_sequence else -1
        wants_all = slot.is_sequence and expected.shape[axis] == length
        if wants_all and got.shape[axis] != length:
            note = f"{got.shape[axis]} tokens stored, {length} committed"
            yield CacheDifference(slot.layer, slot.name, float("inf"), 0.0, note)
            continue
        if expected.shape != got.shape:
            common = min(expected.shape[axis], got.shape[axis])
            expected = expected.narrow(axis, expected.shape[axis] - common, common)
            got = got.narrow(axis, got.shape[axis] - common, common)
        if expected.shape != got.shape:
            yield CacheDifference(slot.layer, slot.name, float("inf"), 0.0, "another shape")
            continue
        scale = float(expected.abs().max())
        # What is not a number compares as equal to everything.
        largest = float((expected - got).abs().nan_to_num(float("inf")).max())
        yield CacheDifference(slot.layer, slot.name, largest, scale)


def cache_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a forward, or None."""
    for name in ARGUMENTS:
        if kwargs.get(name) is not None:
            return kwargs[name]
    return next((value for value in args if hasattr(value, "get_seq_length")), None)


def has(cache: Any, names: tuple[str, ...]) -> bool:
    return any(slot.name in names for slot in slots(cache))


def copy_into(cache: Any, source: Any, names: tuple[str, ...]) -> int:
    """Overwrites the tensors of `cache` that have one of the names by those of `source`; the number that fitted."""
    given = {_key(slot): slot.tensor for slot in slots(source)}
    done = 0
    for slot in slots(cache):
        value = given.get(_key(slot))
        if slot.name in names and value is not None and value.shape == slot.tensor.shape:
            slot.write(value.detach().clone())
            done += 1
    return done


def overwrite_last(cache: Any, source: int) -> None:
    """Puts the keys and values of another token (`source`, from the end) in the place of the last one."""
    with torch.inference_mode():
        for slot in slots(cache):
            if slot.is_sequence and slot.tensor.shape[-2] >= abs(source):
                changed = slot.tensor.clone()
                changed[..., -1, :] = changed[..., source, :]
                slot.write(changed)


def _key(slot: Slot) -> tuple[int, str, Any]:
    return slot.layer, slot.name, slot.key if isinstance(slot.holder, Mapping) else None
