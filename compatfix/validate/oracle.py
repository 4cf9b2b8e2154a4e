"""The oracle: what a draft would say if it mostly knew how the text goes on.

It follows the text *as generated so far*: on a tree whose state is corrupted the text wanders off, and the oracle
wanders with it, so its accepted length says what the corrupted text deserves, not merely that a token was wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.validate.plain import greedy

# Logits that the head gives to the three candidates; others stay far below.
WANTED = (8.0, 7.0, 6.0)
# After a divergence every token ahead costs a plain step, and corrupted text accepts little.
AHEAD_AFTER_DIVERGENCE = 5
# Rows whose lengths are taken at once, and candidates that are compared in float32 behind a first look in the model's
# dtype; lengths below TINY count as that.
CHUNK, CLOSE, TINY = 8192, 16, 1e-12


@dataclass(frozen=True)
class Profile:
    """How often the true token has which rank.

    `ranks` are the chances of rank 1, 2, 3; the rest of the time the true token is not among the candidates.
    `wrong_at` names block positions (from 1) that are wrong, cycling by round: the rejections are forced. `wanted` are
    the logits of the three candidates: a draft that is sure makes trees that are deep instead of wide.
    """

    name: str
    ranks: tuple[float, ...] = (0.7, 0.15, 0.08)
    wrong_at: tuple[int, ...] = ()
    wanted: tuple[float, ...] = WANTED

    def rank(self, position: int, slot: int, round_index: int, seed: int) -> int | None:
        """Rank (0, 1, 2) or None for a token `slot` places ahead, at absolute `position`.

        Chance depends on the position alone, so chain and tree meet the same luck.
        """
        if self.wrong_at:
            return None if slot == self.wrong_at[round_index % len(self.wrong_at)] else 0
        draw = random.Random(seed * 1_000_003 + position).random()
        total = 0.0
        for rank, chance in enumerate(self.ranks):
            total += chance
            if draw < total:
                return rank
        return None


ORACLE = Profile("oracle")
ALWAYS = Profile("always right", ranks=(1.0,))
SURE = Profile("always right and sure", ranks=(1.0,), wanted=(16.0, 4.0, 3.0))
NEVER = Profile("never right", ranks=())
PARTIAL = Profile("forced rejections", wrong_at=(3, 1, 5, 2, 7, 4))


class Truth:
    """What plain decoding says after a text; keeps the line that it is on and leaves it only when the text does."""

    def __init__(self, target: nn.Module, quiet: Callable[[], AbstractContextManager[None]]) -> None:
        self._target = target
        self._quiet = quiet
        self._line: list[int] = []
        self._on_reference = True
        self.recomputed = 0

    def start(self, prompt: Sequence[int], reference: Sequence[int]) -> None:
        self._line = [*prompt, *reference]
        self._on_reference = True
        self.recomputed = 0

    def after(self, text: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that follow; fewer behind the end of the reference, or after a divergence."""
        known = len(text)
        if list(text) == self._line[:known] and (self._on_reference or len(self._line) > known + 1):
            return self._line[known : known + count]
        self.recomputed += 1
        self._on_reference = False
        with self._quiet():
            self._line = [*text, *greedy(self._target, text, min(count, AHEAD_AFTER_DIVERGENCE))]
        return self._line[known : known + count]


class Head:
    """The target's embeddings and head, read backwards: which token a row is, which state gives wanted logits."""

    def __init__(self, target: nn.Module) -> None:
        embeddings, head = target.get_input_embeddings(), target.get_output_embeddings()  # type: ignore[operator]
        # Nothing is copied that the model holds: at real sizes each of the two is gigabytes.
        self._weight = stored(head)
        bias = getattr(head, "bias", None)
        self._bias = bias.detach() if isinstance(bias, Tensor) else torch.zeros(1)
        self._rows = stored(embeddings)
        self._lengths = torch.cat([part.float().norm(dim=-1) for part in torch.split(self._rows, CHUNK)]).clamp_min(
            TINY
        )
        self.size = min(self._weight.shape[0], self._rows.shape[0])
        self.vocab = self.size

    def token_of(self, row: Tensor) -> int:
        """The token whose embedding this is. By direction, so that a scale outside the module does not matter."""
        row = row.to(self._rows.device)
        near = (
            ((self._rows @ row.to(self._rows.dtype)).float() / self._lengths).topk(min(CLOSE, len(self._rows))).indices
        )
        exact = (self._rows[near].float() @ row.float()) / self._lengths[near]
        return int(near[exact.argmax()])

    def states(self, candidates: Sequence[Sequence[int]], logits: Sequence[float] = WANTED) -> Tensor:
        """(n, H): the smallest states whose head logits for the candidates of each row are `logits`."""
        index = torch.tensor(candidates, device=self._weight.device)
        rows = self._weight[index].float()  # (n, 3, H)
        bias = self._bias.to(rows.device).float().expand(self._weight.shape[0])[index]
        wanted = torch.tensor(logits, device=rows.device)[: index.shape[1]] - bias
        gram = rows @ rows.transpose(-1, -2)
        states: Tensor = (rows.transpose(-1, -2) @ torch.linalg.solve(gram, wanted[..., None]))[..., 0]
        return states


def stored(module: nn.Module) -> Tensor:
    """(V, H): the weight of an embedding or a head, also where accelerate keeps it away from the module."""
    weight: Any = module.weight
    if weight.device.type == "meta":
        weight = module._hf_hook.weights_map["weight"]  # type: ignore[union-attr, index]
    found: Tensor = weight.detach()
    return found


class Oracle:
    """Makes the draft's output for one generation after another."""

    def __init__(self, head: Head, truth: Truth, seed: int) -> None:
        self._head = head
        self._truth = truth
        self._seed = seed
        self.profile = ORACLE
        self._avoid: frozenset[int] = frozenset()
        self._salt = 0

    def start(
        self, profile: Profile, prompt: Sequence[int], reference: Sequence[int], avoid: frozenset[int], salt: int
    ) -> None:
        """`avoid` are tokens that must not be decoys; `salt` tells one prompt's luck from another's."""
        self.profile = profile
        self._avoid = avoid
        self._salt = salt
        self._truth.start(prompt, reference)

    @property
    def recomputed(self) -> int:
        return self._truth.recomputed

    def states(self, text: Sequence[int], count: int, round_index: int) -> Tensor:
        """(count, H) states for the `count` positions after `text`, whose last token is the block's first."""
        following = self._truth.after(text, count)
        candidates = []
        for slot in range(1, count + 1):
            position = len(text) + slot - 1
            true = following[slot - 1] if slot <= len(following) else None
            rank = None if true is None else self.profile.rank(position, slot, round_index, self._seed + self._salt)
            candidates.append(self._candidates(true, rank, position))
        return self._head.states(candidates, self.profile.wanted)

    def _candidates(self, true: int | None, rank: int | None, position: int) -> list[int]:
        draw = random.Random((self._seed + self._salt) * 7_919 + position)
        decoys: list[int] = []
        while len(decoys) < len(WANTED):
            token = draw.randrange(self._head.vocab)
            if token != true and token not in self._avoid and token not in decoys:
                decoys.append(token)
        if true is None or rank is None:
            return decoys
        return [*decoys[:rank], true, *decoys[rank:]][: len(WANTED)]
