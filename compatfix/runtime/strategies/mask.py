"""Mask: one forward under the ancestor mask. For targets that keep nothing but keys and values."""

from __future__ import annotations

from typing import Any

from .base import Block, Facts, Record, Strategy


class Mask(Strategy):
    name = "mask"

    def obstacle(self, facts: Facts) -> str | None:
        if facts.mixers.stateful:
            layers = {mixer.layer for mixer in facts.mixers.found} | {layer for layer, _ in facts.mixers.unexplained}
            return f"a mask does not reach the states that {len(layers)} layers keep"
        return None

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        return block.forward(facts), Record(block.start, block.tree)
