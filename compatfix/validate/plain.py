"""Plain decoding of the target, written apart from any tree: the yardstick that everything is compared with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.validate.devices import input_device


class PlainDecoder:
    """One token at a time on a cache of the library's own. With `hidden`, `states` are the last forward's, (T, H)."""

    def __init__(self, target: nn.Module, tokens: Sequence[int], *, hidden: bool = False) -> None:
        self.target = target
        self.hidden = hidden
        self.states: tuple[Tensor, ...] = ()
        self.tokens = list(tokens)
        self.cache: Any = None
        self.logits = self._forward(tokens, 0)

    def step(self, token: int) -> Tensor:
        """Feeds one token; returns the logits (V,) of what follows it."""
        self.logits = self._forward([token], len(self.tokens))
        self.tokens.append(token)
        return self.logits

    def _forward(self, tokens: Sequence[int], start: int) -> Tensor:
        device = input_device(self.target)
        cache = _new_cache(self.target) if self.cache is None else self.cache
        given: dict[str, Any] = {} if cache is None else {"past_key_values": cache}
        if self.hidden:
            given["output_hidden_states"] = True
        with torch.inference_mode():
            output = self.target(
                torch.tensor([list(tokens)], device=device),
                position_ids=torch.arange(start, start + len(tokens), device=device)[None],
                use_cache=True,
                **given,
            )
        self.cache = getattr(output, "past_key_values", None)
        if self.cache is None:
            self.cache = cache
        if self.hidden:
            self.states = tuple(entry[0].float() for entry in output.hidden_states)
        return last_logits(output)


def _new_cache(target: nn.Module) -> Any:
    """None where the library has no config-built cache for this class: the forward then makes its own."""
    from transformers import DynamicCache

    if _brings_its_own(target):
        return None
    try:
        cache = DynamicCache(config=target.config)
    except Exception:
        return None
    config = text_config(target)
    kinds = set(getattr(config, "layer_types", None) or ())
    states = kinds & {"linear_attention", "mamba", "conv", "attention_and_mamba"}
    # Before the library kept recurrent states in DynamicCache, such classes brought a cache class of their own.
    if states and not any(hasattr(layer, "recurrent_states") for layer in getattr(cache, "layers", ())):
        return None
    return cache


def _brings_its_own(target: nn.Module) -> bool:
    """Whether the target's module defines a cache class: where there is one, its models take no other."""
    module = sys.modules[type(target).__module__]
    return any(
        isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "get_seq_length")
        for value in vars(module).values()
    )


def last_logits(output: Any) -> Tensor:
    logits = output.logits[0, -1]
    assert isinstance(logits, Tensor)
    return logits


def greedy(target: nn.Module, tokens: Sequence[int], count: int) -> list[int]:
    """The next `count` tokens of plain greedy decoding."""
    decoder = PlainDecoder(target, tokens)
    found = [int(decoder.logits.argmax())]
    while len(found) < count:
        found.append(int(decoder.step(found[-1]).argmax()))
    return found[:count]


@dataclass(frozen=True)
class Uncached:
    """One forward over a whole text without a cache. `logits` (T, V); `hidden` one (T, H) per entry, if asked for."""

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


def uncached(target: nn.Module, tokens: Sequence[int], *, hidden: bool = False) -> Uncached:
    return uncached_rows(target, [list(tokens)], hidden=hidden)[0]


def uncached_rows(target: nn.Module, rows: Sequence[Sequence[int]], *, hidden: bool = False) -> list[Uncached]:
    """The same for several texts at once: shorter ones are padded behind, which a causal model does not see."""
    device = input_device(target)
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows], device=device)
    with torch.inference_mode():
        output = target(tokens, use_cache=False, output_hidden_states=hidden)
    states = tuple(output.hidden_states) if hidden else ()
    return [
        Uncached(output.logits[i, : len(row)].float(), tuple(entry[i, : len(row)].float() for entry in states))
        for i, row in enumerate(rows)
    ]


def margins(logits: Tensor) -> Tensor:
    """Top-1 minus top-2 of each row: (T, V) -> (T,)."""
    top = logits.topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def text_config(target: nn.Module) -> Any:
    config: Any = target.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config
