"""Follows a tree that samples: what it committed is read off what it hands to the draft, not off the target's argmax.

And the draft for such runs: an oracle that proposes what the target finds likely, so that proposals are accepted in
part, wholly, and not at all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from compatfix.validate.oracle import WANTED, Head, Oracle, Profile, Truth
from compatfix.validate.plain import PlainDecoder
from compatfix.validate.watch import Forward, Watch

# Places ahead that the oracle looks; each costs a plain step, and under sampling few texts go further along its line.
AHEAD = 3
# How often the target's most likely token stands first, second, third among the proposals; else it is not proposed.
CANDIDATES = Profile("sampling oracle", ranks=(0.6, 0.2, 0.1))


@dataclass(frozen=True)
class Proposal:
    """What the draft proposed behind the text's first `length` tokens: for each place the candidates, best first."""

    length: int
    candidates: list[list[int]]


class SamplingOracle(Oracle):
    """Proposes the target's likely tokens along its most likely continuation. Every proposal follows from the text and
    the seed alone, so that it is known before the tokens that it is about are drawn."""

    def __init__(self, head: Head, truth: Truth, target: Any, quiet: Any, seed: int) -> None:
        super().__init__(head, truth, seed)
        self._target = target
        self._quiet = quiet
        self.proposals: list[Proposal] = []

    def start(
        self, profile: Profile, prompt: Sequence[int], reference: Sequence[int], avoid: frozenset[int], salt: int
    ) -> None:
        super().start(profile, prompt, reference, avoid, salt)
        self.proposals = []

    def states(self, text: Sequence[int], count: int, round_index: int) -> Tensor:
        likely = self._likely(text, min(count, AHEAD))
        candidates = []
        for slot in range(count):
            ranked = likely[slot] if slot < len(likely) else []
            candidates.append(self._proposed(ranked, len(text) + slot, slot, round_index))
        self.proposals.append(Proposal(len(text), candidates))
        return self._head.states(candidates)

    def _likely(self, text: Sequence[int], count: int) -> list[list[int]]:
        """The most likely tokens of each place along the most likely continuation."""
        with self._quiet():
            decoder = PlainDecoder(self._target, text)
            found = [self._allowed(decoder.logits)]
            while len(found) < count:
                found.append(self._allowed(decoder.step(found[-1][0])))
        return found

    def _allowed(self, logits: Tensor) -> list[int]:
        wanted = len(WANTED) + len(self._avoid)
        tokens: list[int] = logits[: self._head.vocab].topk(wanted).indices.tolist()
        return [token for token in tokens if token not in self._avoid][: len(WANTED)]

    def _proposed(self, ranked: list[int], position: int, slot: int, round_index: int) -> list[int]:
        if not ranked:
            return self._candidates(None, None, position)
        rank = self.profile.rank(position, slot + 1, round_index, self._seed + self._salt)
        first, *others = ranked
        if rank is None:
            return self._candidates(None, None, position) if slot else [*others, self._stranger(ranked, position)]
        return [*others[:rank], first, *others[rank:]]

    def _stranger(self, known: list[int], position: int) -> int:
        draw = random.Random((self._seed + self._salt) * 7_919 + position)
        while (token := draw.randrange(self._head.vocab)) in known or token in self._avoid:
            pass
        return token


class SamplingWatch(Watch):
    """Knows which nodes were committed by the context rows that the tree hands to its draft: they are hidden states
    of those very nodes."""

    _hidden: Any = None

    def _leave(self, output: Any) -> Any:
        self._hidden = getattr(output, "hidden_states", None)
        return super()._leave(output)

    def _commit(self, context: Tensor, noise: Tensor) -> None:
        following = self.head.token_of(noise[0, 0])
        if self.rounds:
            last = self.rounds[-1]
            path = self._path(last, context)
            for node, child in pairwise(path):
                last.argmax[node] = last.tokens[child]
            last.argmax[path[-1]] = following
        elif self.prefill is not None:
            self.prefill.argmax[-1] = following
        super()._commit(context, noise)

    def _path(self, forward: Forward, context: Tensor) -> list[int]:
        path = [0]
        for row in context[0, 1:]:
            children = [node for node, parent in enumerate(forward.parents) if parent == path[-1]]
            if not children:
                self.lost += 1
                break
            path.append(children[0] if len(children) == 1 else self._nearest(children, row))
        return path

    def _nearest(self, nodes: list[int], row: Tensor) -> int:
        """The node one of whose hidden states is the beginning of this context row."""
        distances = []
        for states in self._hidden or ():
            if isinstance(states, Tensor) and states.shape[1] > max(nodes) and states.shape[2] <= len(row):
                distances.append((states[0, nodes] - row[: states.shape[2]].to(states)).abs().amax(1))
        if not distances:
            self.lost += 1
            return nodes[0]
        return nodes[int(torch.stack(distances).amin(0).argmin())]
