"""A draft's forward with the masks that its config asks for.

Published drafts build no mask: under sdpa and eager their sliding layers see the whole context, and the whole block in
both directions. The config says otherwise: `layer_types` and `sliding_window` give the windows, `is_causal` says
whether a query sees what comes after it in the block; without it, sliding layers are causal and full ones are not, as
the published release 0.1.0 of DFlash reads it. This changes what is drafted, never what is emitted.
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .attest import note_draft
from .caches import store_every_token
from .calls import CACHE_NAMES
from .draft_config import draft_value
from .mixers import Forward, replaced_forwards
from .plans import lock_of
from .refusal import RuntimeRefusal

log = logging.getLogger(__name__)

# Attention that takes an additive mask; others window by an argument of their own.
MASKED = ("sdpa", "eager")
_told: set[type] = set()
# By draft: what its config said, and the modules that are given masks. They are parts of the draft and do not hold it.
_found: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[Sight, ...], tuple[tuple[nn.Module, Sight], ...]]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class Sight:
    """What the queries of one layer may see: keys less than `window` away, and none behind them if `causal`."""

    window: int | None
    causal: bool

    @property
    def limited(self) -> bool:
        return self.window is not None or self.causal


def draft_forward(draft: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls `draft` with the same arguments; layers whose config limits what they see are given a mask.

    Masks are made for calls with `noise_embedding` (1, Q, H) and `position_ids` (1, C + Q), C new context tokens,
    under sdpa or eager attention; a mask that the caller passes, or that the draft's own layers pass on, stays. Sliding
    layers of the draft's cache store every token. Returns what the draft returns.
    """
    note_draft(draft)
    given = {**_named(draft, args), **kwargs}
    noise, positions = given.get("noise_embedding"), given.get("position_ids")
    sights = sights_of(draft)
    limited = any(sight.limited for sight in sights)
    if not limited or not isinstance(noise, Tensor) or not isinstance(positions, Tensor):
        return draft(*args, **kwargs)
    cache = next((given[name] for name in CACHE_NAMES if given.get(name) is not None), None)
    if cache is not None:
        store_every_token(cache)
    if given.get("attention_mask") is not None or not _takes_masks(draft):
        return draft(*args, **kwargs)
    past = int(cache.get_seq_length()) if cache is not None and _uses_cache(draft, given) else 0
    with lock_of(draft):
        makers = _masking(draft, sights, noise.shape[1], past + positions.shape[-1])
        if not makers:
            _tell(draft, "none of their modules names an attention_mask")
        with replaced_forwards(makers):
            return draft(*args, **kwargs)


def _named(draft: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by the names that the draft's forward has for them."""
    names = [
        name
        for name, parameter in inspect.signature(draft.forward).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return dict(zip(names, args, strict=False))


def sights_of(draft_or_config: Any) -> tuple[Sight, ...]:
    """What each layer of a draft may see, by its config. () where the config tells nothing about layers."""
    kinds = draft_value(draft_or_config, "layer_types") or ()
    window = draft_value(draft_or_config, "sliding_window")
    causal = draft_value(draft_or_config, "is_causal")
    sights = []
    for kind in kinds:
        sliding = "sliding" in str(kind)
        sights.append(Sight(window if sliding else None, sliding if causal is None else bool(causal)))
    return tuple(sights)


def draft_mask(sight: Sight, queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The additive mask (1, 1, Q, K) of the last `queries` of `keys` positions that follow one another."""
    at = torch.arange(keys, device=device)
    ahead = at[None] - at[keys - queries :, None]  # (Q, K): how far a key lies behind a query
    visible = torch.ones_like(ahead, dtype=torch.bool)
    if sight.window is not None:
        visible = ahead.abs() < sight.window
    if sight.causal:
        visible = visible & (ahead <= 0)
    return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill(~visible, torch.finfo(dtype).min)[
        None, None
    ]


def _uses_cache(draft: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Published drafts leave the cache that they are given alone unless `use_cache` says otherwise."""
    if kwargs.get("use_cache") is not None:
        return bool(kwargs["use_cache"])
    parameter = inspect.signature(draft.forward).parameters.get("use_cache")
    return parameter is None or parameter.default in (parameter.empty, None) or bool(parameter.default)


def _takes_masks(draft: nn.Module) -> bool:
    implementation = getattr(getattr(draft, "config", None), "_attn_implementation", None)
    if implementation in (None, *MASKED):
        return True
    _tell(draft, f"its attention is {implementation!r}, which takes no additive mask")
    return False


def _masking(
    draft: nn.Module, sights: tuple[Sight, ...], queries: int, keys: int
) -> Mapping[nn.Module, Callable[[Forward], Forward]]:
    """For every module of a limited layer: the maker of a forward that is given the layer's mask."""
    own = threading.get_ident()
    masks: dict[tuple[Sight, torch.dtype, torch.device], Tensor] = {}

    def masking(sight: Sight) -> Callable[[Forward], Forward]:
        def make(original: Forward) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                hidden = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
                if kwargs.get("attention_mask") is None and hidden is not None and threading.get_ident() == own:
                    key = sight, hidden.dtype, hidden.device
                    if key not in masks:
                        masks[key] = draft_mask(sight, queries, keys, hidden.dtype, hidden.device)
                    kwargs["attention_mask"] = masks[key]
                return original(*args, **kwargs)

            return forward

        return make

    return {module: masking(sight) for module, sight in _limited(draft, sights)}


def _limited(draft: nn.Module, sights: tuple[Sight, ...]) -> tuple[tuple[nn.Module, Sight], ...]:
    """The modules of limited layers that name an attention_mask; found once, and again if the config changes."""
    known = _found.get(draft)
    if known is not None and known[0] == sights:
        return known[1]
    found: list[tuple[nn.Module, Sight]] = []
    for module in draft.modules():
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or "attention_mask" not in inspect.signature(module.forward).parameters:
            continue
        if layer >= len(sights):
            raise RuntimeRefusal(f"the draft has a layer {layer}, but its config names {len(sights)} layer_types")
        if sights[layer].limited:
            found.append((module, sights[layer]))
    _found[draft] = sights, tuple(found)
    return _found[draft][1]


def _tell(draft: nn.Module, reason: str) -> None:
    if type(draft) not in _told:
        _told.add(type(draft))
        log.warning("%s: its limited layers are given no masks: %s", type(draft).__name__, reason)
