"""The interface of a verification strategy: can it be tried, run one block, and what is left to commit from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..calls import Call
from ..masks import tree_masks
from ..mixers import Mixers
from ..refusal import RuntimeRefusal
from ..slots import keep_tokens, state_slots
from ..trees import Tree


@dataclass(frozen=True)
class Facts:
    """What was measured on a target before any strategy is tried. Kept with the target, so it must not hold it."""

    mixers: Mixers
    config: Any
    dtype: torch.dtype
    # Bytes that the states held during a verify may take beside the cache; None: no limit.
    state_limit: int | None = None


@dataclass(frozen=True)
class Block:
    """One block of tokens to verify behind `start` committed ones."""

    call: Call
    start: int
    tree: Tree

    @property
    def cache(self) -> Any:
        return self.call.cache

    def forward(self, facts: Facts) -> Any:
        """One forward over all nodes, under the tree's mask and at its positions."""
        call = self.call
        if self.tree.is_chain:
            # The model's own causal masks are right for a chain, windows included.
            return call.changed(attention_mask=None).forward()
        device = call.tokens.device
        masks = tree_masks(facts.config, self.tree, self.start, facts.dtype, device)
        changes: dict[str, Any] = {"attention_mask": masks}
        if call.arguments.get("position_ids") is None:
            changes["position_ids"] = (self.start + self.tree.depths_on(device))[None]
        return call.changed(**changes).forward()


class Record:
    """What a verify leaves on the cache. The cache holds `start` + N tokens; its states are those at `start`."""

    def __init__(self, start: int, tree: Tree) -> None:
        self.start = start
        self.tree = tree

    def keep(self, cache: Any, path: Sequence[int]) -> None:
        """Makes the cache the one that plain decoding of the nodes of `path` would leave; () takes all back."""
        keep_tokens(cache, self.start, path)
        if path:
            self.keep_states(cache, path)

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        """Moves the states from `start` to the end of `path`; without states there is nothing to do."""


class StateRecord(Record):
    """A record with the states of every node: {slot label: (N, …)}."""

    def __init__(self, start: int, tree: Tree, states: dict[tuple[int, str], Tensor]) -> None:
        super().__init__(start, tree)
        self.states = states

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        for slot in state_slots(cache):
            states = self.states.get(slot.label)
            if states is not None:
                # Cloned: layers update their states in place, and the other nodes' must be freed.
                slot.put(states[path[-1] : path[-1] + 1].clone())


def kept_logits(logits: Tensor, keep: Any) -> Tensor:
    """Logits (1, N, V) of all nodes as `logits_to_keep` asks for them: the last ones, or those at the places given."""
    if isinstance(keep, Tensor):
        return logits[:, keep.to(logits.device)]
    return logits[:, -keep:] if isinstance(keep, int) and keep > 0 else logits


class Strategy(ABC):
    """One way to verify a tree exactly. Stateless; a new one is a new module and an entry in STRATEGIES."""

    name: ClassVar[str]
    # Whether `run` updates the cache's states in place, so that they must be cloned to survive an exception.
    updates_states: ClassVar[bool] = False

    @abstractmethod
    def obstacle(self, facts: Facts) -> str | None:
        """Why this strategy cannot work on this target, as far as can be told without running it."""

    def forms(self, facts: Facts) -> Sequence[Strategy]:
        """Every way that `run` may take on this target; each is measured before any is used."""
        return (self,)

    @abstractmethod
    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        """Verifies a block of two tokens or more: the target's output in node order, and the record to commit from."""


def refuse_over(limit: int | None, name: str, needed: int) -> None:
    """Refuses a block whose states take more than the limit, for strategies that cannot do with less."""
    if limit is not None and needed > limit:
        raise RuntimeRefusal(
            f"{name} would hold {needed} bytes during this verify and the limit is {limit}: raise memory_limit "
            "(COMPATFIX_STATE_BYTES), or verify fewer nodes"
        )
