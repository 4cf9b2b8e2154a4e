"""Conv tree: one forward, in which the causal convolution of each node goes over its ancestors.

For mixers that keep a conv window and nothing else (short convolutions). A commit takes, from the recorded inputs, the
window of the accepted node: no second forward, no state per node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..mixers import Mixer, replaced_forwards
from ..refusal import RuntimeRefusal
from ..slots import Slot
from ..trees import Tree
from .base import Block, Facts, Record, Strategy
from .exchange import CONVS, ConvPass, obstacle, over_tree, put_window
from .mixer_levels import check_calls


class ConvTree(Strategy):
    name = "conv tree"

    def obstacle(self, facts: Facts) -> str | None:
        return obstacle(facts, [["conv"]], [CONVS])

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        passes: dict[int, ConvPass] = {}
        calls: list[Mixer] = []

        def begin(mixer: Mixer, slots: Sequence[Slot]) -> ConvPass:
            layer_pass = passes[mixer.layer] = ConvPass(block.tree, slots[0].tensor)
            return layer_pass

        makers = {m.module: over_tree(m, block, calls, partial(begin, m)) for m in facts.mixers.found}
        with replaced_forwards(makers):
            output = block.forward(facts)
        check_calls(calls, facts)
        inputs = {layer: _only(layer_pass) for layer, layer_pass in passes.items()}
        return output, ConvRecord(block.start, block.tree, facts.mixers.found, inputs)


class ConvRecord(Record):
    """inputs: by layer (1, C, L + N), the committed conv window, then the inputs of the nodes."""

    def __init__(self, start: int, tree: Tree, mixers: Sequence[Mixer], inputs: Mapping[int, Tensor]) -> None:
        super().__init__(start, tree)
        self.mixers = tuple(mixers)
        self.inputs = inputs

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        for mixer in self.mixers:
            (conv,) = mixer.slots(cache)
            put_window(conv, self.inputs[mixer.layer], self.tree, path[-1])


def _only(layer_pass: ConvPass) -> Tensor:
    if len(layer_pass.inputs) != 1:
        raise RuntimeRefusal(f"a mixer called its convolution {len(layer_pass.inputs)} times; once was expected")
    return layer_pass.inputs[0]
