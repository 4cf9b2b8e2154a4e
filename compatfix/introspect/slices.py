"""A model cut in depth alone: a few layers at their real widths. Torch-free: a config in, a config out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compatfix.introspect.shrink import DEPTH_NAMES, Ledger, drop_quantisation, require, shrink_depth, text_part


@dataclass(frozen=True)
class Slice:
    """`config` at the real widths; its layer i is the real layer `layers[i]` of `depth`."""

    config: dict[str, Any]
    layers: tuple[int, ...]
    depth: int


def slice_of(config: Mapping[str, Any], *, repeats: bool = True) -> Slice:
    """Keeps every kind of layer, as the tiny config does; without `repeats` one pattern of them only.

    Raises ValueError naming the field that is missing.
    """
    cut = copy.deepcopy(dict(config))
    text = text_part(cut)
    depth = require(text, DEPTH_NAMES)
    choice = shrink_depth(text, depth, Ledger(), repeats=repeats)
    drop_quantisation(cut, Ledger())
    return Slice(cut, choice.layers, depth)
