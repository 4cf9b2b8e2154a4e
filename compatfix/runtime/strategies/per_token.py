"""Linear layers of a mixer that is called depth by depth, run once over all nodes where that gives the same.

Reading a layer's weights once per depth is most of what calling a mixer per depth costs. A layer that is given the
mixer's own input needs no state and runs over all nodes at the first depth; a layer whose output is the mixer's own
output is put off until all depths are through. Both are recognised by object identity, never by name; every other layer
runs depth by depth.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..mixers import Forward, replaced_forwards
from ..refusal import RuntimeRefusal


class PerToken:
    """The linear layers below `module` during one call over a tree."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [child for child in module.modules() if type(child) is nn.Linear]
        self._thread = threading.get_ident()
        # This depth's nodes, and its rows of the mixer's arguments with the whole arguments.
        self._nodes = torch.empty(0, dtype=torch.long)
        self._given: list[tuple[Tensor, Tensor]] = []
        self._ahead: dict[nn.Module, Tensor] = {}
        self._outputs: list[tuple[nn.Module, Forward, Tensor]] = []
        self._last: tuple[nn.Module, Forward] | None = None
        self._awaited: Tensor | None = None
        self._put_off: list[Tensor] = []
        self._finishing = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        def maker(layer: nn.Linear) -> Any:
            return lambda original: self._forward(layer, original)

        with replaced_forwards({layer: maker(layer) for layer in self._layers}):
            yield

    def begin(self, nodes: Tensor, given: list[tuple[Tensor, Tensor]]) -> None:
        """A depth begins: `given` pairs what the mixer gets, (n, 1, …), with what it was called with, (1, N, …)."""
        self._nodes, self._given, self._awaited = nodes, given, None

    def end(self, rows: Tensor) -> Tensor | None:
        """A depth is through, with the mixer's output `rows`; None where that output will come from `finish`."""
        if self._last is None:
            makers = [(layer, original) for layer, original, output in self._outputs if output is rows]
            once = len(makers) == 1 and [layer for layer, _, _ in self._outputs].count(makers[0][0]) == 1
            self._last = makers[0] if once and not self._ahead.keys() & {makers[0][0]} else None
            self._outputs.clear()
            return rows
        if rows is not self._awaited:
            raise RuntimeRefusal("a mixer took another way at one depth of the tree than at the others")
        return None

    def finish(self) -> Tensor | None:
        """The outputs (n, 1, …) of all depths that were put off, in their order."""
        if self._last is None or not self._put_off:
            return None
        rows, self._put_off = torch.cat(self._put_off), []
        self._finishing = True
        # By the layer's own forward, since a hook around it may have to fetch its weights.
        output: Tensor = self._last[0].forward(rows)
        return output

    def _forward(self, layer: nn.Linear, original: Forward) -> Forward:
        def forward(x: Tensor) -> Any:
            if threading.get_ident() != self._thread or self._finishing:
                return original(x)  # plain decoding of the same model in another thread, or the end of this one
            whole = next((whole for rows, whole in self._given if rows is x), None)
            if whole is not None:
                if layer not in self._ahead:
                    self._ahead[layer] = original(whole)
                ahead = self._ahead[layer]
                return ahead[0].index_select(0, self._nodes.to(ahead.device))[:, None]
            if self._last is not None and layer is self._last[0]:
                self._put_off.append(x)
                self._awaited = x.new_empty(*x.shape[:-1], layer.out_features)
                return self._awaited
            output = original(x)
            if self._last is None:
                self._outputs.append((layer, original, output))
            return output

        return forward
