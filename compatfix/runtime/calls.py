"""A call of the target, with its arguments by the names that the target's forward really has."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .refusal import RuntimeRefusal
from .slots import COUNT, length

CACHE_NAMES = ("cache", "past_key_values", "past_key_value", "cache_params")
# Wrappers whose forward takes anything; the names are those of what they wrap.
WRAPPED = ("_orig_mod", "module", "base_model")


@dataclass(frozen=True)
class Call:
    """One forward of `target`; `arguments` are keywords, the cache among them."""

    target: nn.Module
    arguments: Mapping[str, Any]
    cache_name: str
    accepted: frozenset[str] | None  # None: takes any keyword
    named: frozenset[str] = frozenset()

    @property
    def cache(self) -> Any:
        return self.arguments.get(self.cache_name)

    @property
    def tokens(self) -> Tensor:
        """(batch, N) ids, or (batch, N, width) embeddings."""
        for name in ("input_ids", "inputs_embeds"):
            value = self.arguments.get(name)
            if isinstance(value, Tensor):
                return value
        raise RuntimeRefusal("the call has neither input_ids nor inputs_embeds; there is nothing to verify")

    @property
    def size(self) -> int:
        return self.tokens.shape[1]

    def accepts(self, name: str) -> bool:
        return self.accepted is None or name in self.accepted

    def changed(self, **changes: Any) -> Call:
        """The call with arguments replaced; those that the target does not take are left out."""
        kept = {name: value for name, value in changes.items() if name in self.arguments or self.accepts(name)}
        return replace(self, arguments={**self.arguments, **kept})

    def node(self, index: int, position: int) -> Call:
        """The call of the single token `index` of this block, at `position`, without a mask."""
        changes: dict[str, Any] = {"attention_mask": None}
        for name in ("input_ids", "inputs_embeds"):
            value = self.arguments.get(name)
            if isinstance(value, Tensor):
                changes[name] = value[:, index : index + 1]
        positions = self.arguments.get("position_ids")
        if isinstance(positions, Tensor):
            changes["position_ids"] = positions[..., index : index + 1]
        else:
            changes["position_ids"] = torch.tensor([[position]], device=self.tokens.device)
        if isinstance(self.arguments.get("cache_position"), Tensor):
            changes["cache_position"] = torch.tensor([position], device=self.tokens.device)
        if "logits_to_keep" in self.arguments:
            changes["logits_to_keep"] = 0
        return self.changed(**changes)

    def forward(self) -> Any:
        """Calls the target.

        Positions are told behind a filled cache, since not every model counts what it holds (Bamba), and
        the tokens are counted on a cache that cannot.
        """
        cache = self.cache
        if cache is None or self.arguments.get("use_cache") is False:
            return self.target(**self.arguments)
        output = self.target(**{**self.arguments, **self._positions()})
        count = cache.__dict__.get(COUNT)
        if count is not None:
            cache.__dict__[COUNT] = count + self.size
        return output

    def _positions(self) -> dict[str, Tensor]:
        """The positions that the caller left out, behind a filled cache."""
        ids = self.arguments.get("position_ids") is None and self.accepts("position_ids") and not _offset(self.target)
        # Named only: what a forward passes on unseen is not for it.
        places = self.arguments.get("cache_position") is None and "cache_position" in self.named
        past = length(self.cache) if ids or places else 0
        if not past:
            return {}
        told = torch.arange(past, past + self.size, device=self.tokens.device)
        return {**({"position_ids": told[None]} if ids else {}), **({"cache_position": told} if places else {})}


def bind(target: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Names the positional arguments, and gives the cache the name that this target's forward has for it."""
    parameters = _parameters(target)
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(args) > len(names):
        raise RuntimeRefusal(
            f"{len(args)} positional arguments for {type(target).__name__}.forward, which names {len(names)}"
        )
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    given = [name for name in CACHE_NAMES if arguments.get(name) is not None]
    if len({id(arguments[name]) for name in given}) > 1:
        raise RuntimeRefusal(f"more than one cache in a call: {', '.join(given)}")
    own = next((name for name in CACHE_NAMES if name in parameters), given[0] if given else "past_key_values")
    cache = arguments[given[0]] if given else None
    for name in CACHE_NAMES:
        arguments.pop(name, None)
    if cache is not None:
        arguments[own] = cache
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return Call(target, arguments, own, None if takes_any else frozenset(parameters), frozenset(parameters))


def _offset(target: Any) -> bool:
    """Whether the target shifts positions by what it remembers of an image prompt; then they are left to it."""
    part: Any = target
    while isinstance(part, nn.Module):
        if hasattr(part, "rope_deltas"):
            return True
        inner = [getattr(part, name, None) for name in (*WRAPPED, "model")]
        part = next((module for module in inner if isinstance(module, nn.Module) and module is not part), None)
    return False


def _parameters(target: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Parameters of the innermost forward that names a cache; `inspect.signature` looks through decorators."""
    module: Any = target
    while True:
        parameters = inspect.signature(module.forward).parameters
        parts = [getattr(module, name, None) for name in WRAPPED]
        inner = next((part for part in parts if isinstance(part, nn.Module)), None)
        if inner is None or inner is module or any(name in parameters for name in CACHE_NAMES):
            return parameters
        module = inner
