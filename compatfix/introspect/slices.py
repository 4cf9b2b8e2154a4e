"""A model cut in depth alone: a few layers at their real widths. Torch-free: a config in, a config out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compatfix.introspect.shrink import (
    DEPTH_NAMES,
    WINDOW,
    WINDOW_NAMES,
    Ledger,
    drop_quantisation,
    require,
    shrink_depth,
    text_part,
)


@dataclass(frozen=True)
class Slice:
    """`config` at the real widths; its layer i is the real layer `layers[i]` of `depth`."""

    config: dict[str, Any]
    layers: tuple[int, ...]
    depth: int

    def with_short_windows(self) -> tuple[Slice, dict[str, int]]:
        """Windows that short texts fill, and what they were: a kernel takes the width of a window as a number."""
        cut = copy.deepcopy(self.config)
        text = text_part(cut)
        real = {n: text[n] for n in WINDOW_NAMES if isinstance(text.get(n), int) and text[n] > WINDOW}
        text.update(dict.fromkeys(real, WINDOW))
        return replace(self, config=cut), real


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
