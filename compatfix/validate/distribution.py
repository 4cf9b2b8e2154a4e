"""Whether tokens were drawn from the distributions that they should have been drawn from. A test by betting.

Every token t has its exact chances p_t, given the text before it. A bettor who knows the past puts money on classes of
tokens (how likely the token is, whether the draft had proposed it), at the odds that p_t makes fair. Whatever he does,
and however each token depends on those before it, his wealth is a nonnegative martingale that starts at 1 if the tokens
come from p_t, so that it ever reaches 1/a has at most the chance a (Ville 1939). That bound is exact: no large samples,
no pooled cells, no independence. Where the tokens come from other distributions, the bettor learns how and gets rich.

Source: Shafer 2021, "Testing by betting" (J. R. Stat. Soc. A 184); Ramdas, Grünwald, Vovk, Shafer 2023,
arXiv 2210.01948.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

# Last rank of each class of tokens by how likely they are; one more class for all others.
RANK_CLASSES = (1, 2, 4, 8)
# What a bettor pretends to have seen before, in tokens of each class: less learns faster and loses more to chance.
PRIOR = 3.0
ANYWHERE = "anywhere"
BLUR_SEED = 7


@dataclass(frozen=True)
class Draws:
    """n tokens in the order in which they were drawn, over a vocabulary of V.

    `chances` (n, V) float64, exact given the text before each; `tokens` (n,) int64; `situations` n names of what came
    before (behind an accepted token, after a rejection, …); `proposed` (n, C) int64, the draft's candidates for this
    place, best first, all -1 where it had none. Situations and proposals must be known before the token is drawn.
    """

    chances: Tensor
    tokens: Tensor
    situations: Sequence[str]
    proposed: Tensor

    def __len__(self) -> int:
        return len(self.situations)

    @cached_property
    def impossible(self) -> Tensor:
        """(n,) bool: the token had no chance at all."""
        return self.chances.gather(1, self.tokens[:, None])[:, 0] == 0

    @cached_property
    def bets(self) -> list[Bet]:
        """One bettor for each situation and one for all together, for each way to sort tokens into classes."""
        ways = {"likelihood": self._by_rank(), "proposal": self._by_proposal()}
        known = (self.proposed >= 0).any(1)
        names = list(dict.fromkeys(self.situations))
        found = []
        for situation in [ANYWHERE, *names] if len(names) > 1 else names:
            here = torch.tensor([situation in (name, ANYWHERE) for name in self.situations])
            for way, classes in ways.items():
                index = (here if way == "likelihood" else here & known).nonzero()[:, 0]
                if len(index):
                    found.append(Bet(situation, way, index, classes[index], self.chances[index]))
        return found

    def _by_rank(self) -> Tensor:
        """(n, V) class of every token by its rank in `chances`."""
        rank = self.chances.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.bucketize(rank, torch.tensor(RANK_CLASSES), right=True)

    def _by_proposal(self) -> Tensor:
        """(n, V) class 0 for the draft's first candidate, 1 for its others, 2 for the likeliest token that it did not
        propose, 3 for all other tokens."""
        classes = torch.full(self.chances.shape, 3)
        rows, columns = (self.proposed >= 0).nonzero(as_tuple=True)
        classes[rows, self.proposed[rows, columns]] = 1
        left = self.chances.masked_fill(classes == 1, -1.0).argmax(1)
        classes[torch.arange(len(left)), left] = 2
        first = self.proposed[:, 0]
        with_first = (first >= 0).nonzero()[:, 0]
        classes[with_first, first[with_first]] = 0
        return classes


@dataclass(frozen=True)
class Bet:
    """The draws `index` (m,) of one situation, sorted by `classes` (m, V); `chances` (m, V)."""

    situation: str
    way: str
    index: Tensor
    classes: Tensor
    chances: Tensor

    @cached_property
    def odds(self) -> Tensor:
        """(m, K) the chance of each class."""
        size = int(self.classes.max()) + 1
        return torch.zeros(len(self.index), size, dtype=torch.float64).scatter_add(1, self.classes, self.chances)

    def seen(self, tokens: Tensor) -> Tensor:
        """(R, n) tokens -> (R, m) the class that each belongs to."""
        return self.classes[torch.arange(len(self.index)), tokens[:, self.index]]

    def growth(self, tokens: Tensor) -> Tensor:
        """(R, n) tokens of R runs -> (R, m), by how much the logarithm of the wealth grows at each draw.

        The bet on class k is w_k p(k) / sum of w p, w_k the count of the class so far over the count expected so far.
        """
        seen = self.seen(tokens)
        hits = torch.nn.functional.one_hot(seen, self.odds.shape[1]).double()
        observed = hits.cumsum(1) - hits + PRIOR
        expected = self.odds.cumsum(0) - self.odds + PRIOR
        weights = observed / expected
        chosen = weights.gather(2, seen[..., None])[..., 0]
        return chosen.log() - (weights * self.odds).sum(-1).log()


@dataclass(frozen=True)
class Evidence:
    """What the bettors won. `wealth` is the logarithm of the largest mean wealth; `p` an upper bound of the chance
    that right code ever makes them as rich. `situation`, `way`, `observed`, `expected` are the richest one's: tokens
    by class, as drawn and as they should have been.
    """

    wealth: float
    p: float
    situation: str = ""
    way: str = ""
    observed: tuple[int, ...] = ()
    expected: tuple[float, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def weigh(draws: Draws) -> Evidence:
    """The evidence in these draws against the distributions that they should come from. A token with no chance at all
    is infinite evidence."""
    counts = {name: draws.situations.count(name) for name in dict.fromkeys(draws.situations)}
    if bool(draws.impossible.any()):
        where = draws.situations[int(draws.impossible.nonzero()[0])]
        return Evidence(math.inf, 0.0, where, "no chance", counts=counts)
    if not len(draws):
        return Evidence(0.0, 1.0)
    runs = draws.tokens[None]
    wealth = float(_mean_wealth(draws, runs)[0])
    growths = [float(bet.growth(runs)[0].cumsum(0).max()) for bet in draws.bets]
    best = draws.bets[max(range(len(growths)), key=lambda i: growths[i])]
    observed = torch.bincount(best.seen(runs)[0], minlength=best.odds.shape[1])
    expected = best.odds.sum(0)
    return Evidence(
        wealth=wealth,
        p=min(1.0, math.exp(-wealth)),
        situation=best.situation,
        way=best.way,
        observed=tuple(observed.tolist()),
        expected=tuple(round(float(value), 1) for value in expected),
        counts=counts,
    )


def detectable(draws: Draws, alarm: float, *, sure: float = 0.9, runs: int = 40) -> dict[str, float]:
    """By kind of fault, the total variation above which these draws would have shown it.

    Each kind is another distribution b_t, mixed in: (1 - s) p_t + s b_t, the same draws over. Runs are simulated, and
    the smallest share s (of 32 steps) is sought for which at least `sure` of `runs` are told different at the
    false-alarm rate `alarm`; the answer is s times the mean total variation between b_t and p_t. Where not even the
    whole fault is seen it is that mean: a fault of the kind cannot be larger on these draws.
    Kinds: "proposed" the draft's first candidate, "likeliest" the most likely token, "another text" the chances that
    belong to another place.
    """
    generator = torch.Generator().manual_seed(BLUR_SEED)
    first, likeliest = draws.proposed[:, 0], draws.chances.argmax(1)
    elsewhere = draws.chances[torch.randperm(len(draws), generator=generator)]
    kinds = {
        "likeliest": _one_hot(likeliest, draws.chances),
        # Only tokens that have a chance here: any other would give itself away at once.
        "another text": _within(elsewhere, draws.chances),
    }
    if bool((first >= 0).any()):
        kinds["proposed"] = _one_hot(torch.where(first >= 0, first, likeliest), draws.chances)
    found: dict[str, float] = {}
    for name, other in kinds.items():
        distance = float((other - draws.chances).abs().sum(1).mean()) / 2

        def told(step: int, other: Tensor = other) -> bool:
            mixed = torch.lerp(draws.chances, other, step / 32)
            wealth = _mean_wealth(draws, _draw(mixed, runs, generator))
            return float((wealth >= -math.log(alarm)).double().mean()) >= sure

        low, high = 0, 32
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if told(middle) else (middle, high)
        found[name] = distance * high / 32
    return found


def _mean_wealth(draws: Draws, tokens: Tensor) -> Tensor:
    """(R, n) tokens -> (R,): log of the largest mean wealth of all bettors. A mean of martingales is one, so that the
    bound holds for all of them together and nothing has to be corrected for their number."""
    size = tokens.shape[0]
    total = torch.zeros(size, 1, dtype=torch.float64)
    walks = []
    for bet in draws.bets:
        growth = torch.zeros(size, len(draws), dtype=torch.float64)
        growth[:, bet.index] = bet.growth(tokens)
        walks.append(torch.cat([total, growth.cumsum(1)], dim=1))
    return (torch.stack(walks).logsumexp(0) - math.log(len(walks))).amax(1)


def _one_hot(tokens: Tensor, like: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(tokens, like.shape[1]).to(like)


def _within(other: Tensor, chances: Tensor) -> Tensor:
    inside = other * (chances > 0)
    mass = inside.sum(1, keepdim=True)
    return torch.where(mass > 0, inside / mass.clamp_min(1e-300), chances)


def _draw(chances: Tensor, runs: int, generator: torch.Generator) -> Tensor:
    """(n, V) chances -> (R, n) tokens."""
    return torch.multinomial(chances, runs, replacement=True, generator=generator).T.contiguous()
