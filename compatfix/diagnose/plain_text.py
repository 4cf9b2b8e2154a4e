"""Plain decoding of the committed text, step by step: its cache and its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.validate.caches import Slot, slots
from compatfix.validate.plain import PlainDecoder


class Trace:
    """Follows a text that grows, token by token; one that does not continue what it holds starts over."""

    def __init__(self, target: nn.Module) -> None:
        self._target = target
        self._decoder: PlainDecoder | None = None
        self._states: list[tuple[Tensor, ...]] = []

    def follow(self, text: Sequence[int]) -> Any:
        """The cache of plain decoding after `text`."""
        decoder = self._decoder
        if decoder is None or decoder.tokens != list(text[: len(decoder.tokens)]):
            decoder = self._decoder = PlainDecoder(self._target, text, hidden=True)
            self._states = [decoder.states]
        for token in text[len(decoder.tokens) :]:
            decoder.step(token)
            self._states.append(decoder.states)
        return decoder.cache

    def rows(self, text: Sequence[int], entries: Sequence[int], count: int) -> Tensor:
        """(count, len(entries) * H): hidden states of the last `count` tokens, entry 0 being the embedding output."""
        self.follow(text)
        found: list[Tensor] = []
        for states in reversed(self._states):
            found.insert(0, torch.cat([states[entry] for entry in entries], dim=-1))
            if sum(len(part) for part in found) >= count:
                break
        return torch.cat(found)[-count:]


def restore(cache: Any, plain: Any, length: int) -> None:
    """Makes `cache` hold what `plain` holds after `length` tokens.

    A layer that stores more than plain decoding does (every token of a sliding layer, a longer convolution history)
    keeps its surplus, and its tail is overwritten.
    """
    given = {_key(slot): slot.tensor for slot in slots(plain)}
    for slot in slots(cache):
        value = given.get(_key(slot))
        if value is None:
            continue
        axis = -2 if slot.is_sequence else -1
        own = slot.tensor
        stored = value.shape[axis]
        if own.shape != value.shape and own.shape[axis] > stored and (not slot.is_sequence or stored < length):
            kept = own.narrow(axis, 0, own.shape[axis] - stored)
            value = torch.cat([kept, value], dim=axis)
        with torch.inference_mode():
            slot.write(value.detach().clone())


def _key(slot: Slot) -> tuple[int, str, Any]:
    return slot.layer, slot.name, slot.key if isinstance(slot.holder, dict) else None
