"""Small speculative samplers, right and wrong, in plain Python: the programs that the test of distributions must tell
apart. They know a target only by `verify` and `commit`, and draw with their own softmax, top-k and top-p."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from compatfix.validate.distribution import Draws
from compatfix.validate.sampler import Sampler

Chances = list[float]
FIRST, BEHIND, AFTER_REJECTION, AFTER_ALL = "first", "behind accepted", "after a rejection", "after full acceptance"


class Session(Protocol):
    """One generation on one target. The text's last token is never in the cache: it is the root of the next tree."""

    def prefill(self, prompt: Sequence[int]) -> Sequence[float]: ...
    def verify(self, ids: Sequence[int], parents: Sequence[int]) -> Sequence[Sequence[float]]: ...
    def commit(self, path: Sequence[int]) -> None: ...


# The draft's logits for what follows a text.
Draft = Callable[[Sequence[int]], Sequence[float]]


@dataclass(frozen=True)
class Way:
    """How to sample. What is not the default below is a fault, but for `depth`, `width`, temperature, top-p, top-k."""

    form: str = "exact"  # or "rejection"
    depth: int = 3
    width: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    correction: str = "residual"  # or "target", "greedy", "greedy residual"
    accept: str = "ratio"  # or "always"
    draft_temperature: float | None = None  # of the draws, not of the q in the ratio
    draft_top_p: float | None = None  # likewise
    target_top_p: float | None = None
    redraws: int = 0

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.temperature, self.top_p, self.top_k)

    def chances(self, logits: Sequence[float]) -> Chances:
        top_p = self.top_p if self.target_top_p is None else self.target_top_p
        return softmax(logits, self.temperature, top_p, self.top_k)

    def q(self, logits: Sequence[float]) -> Chances:
        return softmax(logits, self.temperature, self.top_p, self.top_k)

    def drawn_from(self, logits: Sequence[float]) -> Chances:
        temperature = self.temperature if self.draft_temperature is None else self.draft_temperature
        top_p = self.top_p if self.draft_top_p is None else self.draft_top_p
        return softmax(logits, temperature, top_p, self.top_k)


@dataclass
class Text:
    """A prompt and what followed, with what was known before each token was drawn."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    situations: list[str] = field(default_factory=list)
    proposed: list[list[int]] = field(default_factory=list)

    def __iter__(self):
        return iter([*self.prompt, *self.tokens])

    def add(self, token: int, situation: str, proposed: list[int]) -> None:
        self.tokens.append(token)
        self.situations.append(situation)
        self.proposed.append(proposed)


def generate(session: Session, draft: Draft, prompt: Sequence[int], count: int, way: Way, dice: random.Random) -> Text:
    """At least `count` tokens; what a round draws beyond that stays."""
    text = Text(list(prompt))
    text.add(draw(way.chances(session.prefill(prompt)), dice), FIRST, [-1] * 3)
    opening = FIRST
    walk = _exact if way.form == "exact" else _rejecting
    while len(text.tokens) < count:
        ids, parents = tree_of(draft, list(text), way, dice)
        path = walk(session.verify(ids, parents), ids, parents, draft, text, opening, way, dice)
        session.commit(path)
        opening = AFTER_REJECTION if path[-1] in parents else AFTER_ALL
    return text


def tree_of(draft: Draft, text: list[int], way: Way, dice: random.Random) -> tuple[list[int], list[int]]:
    """`width` children of every node of the first path, `depth` levels. The exact form takes the draft's likeliest
    tokens, the rejection form draws them, one independently of the other."""
    ids, parents, line, last = [text[-1]], [-1], list(text), 0
    for _ in range(way.depth):
        logits = draft(line)
        if way.form == "exact":
            order = sorted(range(len(logits)), key=lambda i: -logits[i])
            children = order[: way.width]
        else:
            children = [draw(way.drawn_from(logits), dice) for _ in range(way.width)]
        for child in children:
            ids.append(child)
            parents.append(last)
        last = len(ids) - way.width
        line.append(children[0])
    return ids, parents


def _exact(logits, ids, parents, draft, text, opening, way, dice) -> list[int]:
    """Draws from the target at each node and goes on for as long as a child has that token."""
    path, situation = [0], opening
    while True:
        chances = way.chances(logits[path[-1]])
        children = {ids[n]: n for n in range(len(ids) - 1, 0, -1) if parents[n] == path[-1]}
        token = draw(chances, dice)
        for _ in range(way.redraws):
            token = token if token in children or not children else draw(chances, dice)
        if way.correction == "greedy" and children and token not in children:
            token = max(range(len(chances)), key=chances.__getitem__)
        text.add(token, situation, best(draft(list(text))) if children else [-1] * 3)
        if token not in children:
            return path
        path.append(children[token])
        situation = BEHIND


def _rejecting(logits, ids, parents, draft, text, opening, way, dice) -> list[int]:
    """Accepts each child with min(1, p/q); after a rejection p becomes what p has beyond q (Leviathan et al. 2023,
    Chen et al. 2023; several children in turn: Miao et al. 2023)."""
    path, situation = [0], opening
    while True:
        target = p = way.chances(logits[path[-1]])
        children = [n for n in range(len(ids)) if parents[n] == path[-1]]
        known = draft(list(text)) if children else None
        q = way.q(known) if known is not None else []
        accepted = None
        for child in children:
            token = ids[child]
            ratio = math.inf if q[token] == 0 else p[token] / q[token]
            if way.accept == "always" or dice.random() < ratio:
                accepted = child
                break
            rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
            p = [a / sum(rest) for a in rest] if sum(rest) > 0 else p
        proposed = best(known) if known is not None else [-1] * 3
        if accepted is not None:
            text.add(ids[accepted], situation, proposed)
            path.append(accepted)
            situation = BEHIND
            continue
        source = target if way.correction in ("target", "greedy") else p
        greedy = children and way.correction.startswith("greedy")
        text.add(max(range(len(p)), key=source.__getitem__) if greedy else draw(source, dice), situation, proposed)
        return path


def softmax(logits: Sequence[float], temperature: float, top_p: float, top_k: int) -> Chances:
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    kept = order[:top_k] if top_k else order
    weights = {i: math.exp((logits[i] - logits[order[0]]) / temperature) for i in kept}
    total, mass, chances = sum(weights.values()), 0.0, [0.0] * len(logits)
    for i in kept:
        if mass >= top_p * total:
            break
        mass += weights[i]
        chances[i] = weights[i]
    return [chance / mass for chance in chances]


def draw(chances: Chances, dice: random.Random) -> int:
    return dice.choices(range(len(chances)), chances)[0]


def best(logits: Sequence[float]) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: -logits[i])[:3]


def draws_of(texts: Sequence[Text], logits_of: Callable[[Text], torch.Tensor], sampler: Sampler) -> Draws:
    """The draws of several texts; `logits_of` gives (T, V), what a plain forward says before each of the T tokens."""
    logits = torch.cat([logits_of(text) for text in texts])
    keep = (~sampler.on_the_edge(logits)).nonzero()[:, 0].tolist()
    tokens = [token for text in texts for token in text.tokens]
    situations = [name for text in texts for name in text.situations]
    proposed = [candidates for text in texts for candidates in text.proposed]
    return Draws(
        sampler.chances(logits[keep]),
        torch.tensor([tokens[i] for i in keep]),
        tuple(situations[i] for i in keep),
        torch.tensor([proposed[i] for i in keep]),
    )


class Table:
    """A language model that can be enumerated: logits of the next token by the last two, and a draft that errs."""

    def __init__(self, vocabulary: int = 9, seed: int = 0, error: float = 1.0) -> None:
        dice = random.Random(seed)
        size = range(vocabulary)
        self.rows = {(a, b): [dice.gauss(0, 1.5) for _ in size] for a in size for b in size}
        self.drafts = {pair: [x + dice.gauss(0, error) for x in row] for pair, row in self.rows.items()}

    def logits(self, text: Sequence[int]) -> list[float]:
        return self.rows[text[-2], text[-1]]

    def draft(self, text: Sequence[int]) -> list[float]:
        return self.drafts[text[-2], text[-1]]

    def logits_of(self, text: Text) -> torch.Tensor:
        whole, start = list(text), len(text.prompt)
        return torch.tensor([self.logits(whole[: start + i]) for i in range(len(text.tokens))], dtype=torch.float64)


class TableSession:
    """Exact, or forgetful: after a rejection the text ends with the rejected token, as a state that is not rolled
    back does."""

    def __init__(self, table: Table, forgetful: bool = False) -> None:
        self.table, self.forgetful = table, forgetful
        self.text: list[int] = []

    def prefill(self, prompt):
        self.text = list(prompt)
        return self.table.logits(prompt)

    def verify(self, ids, parents):
        self.last = list(ids)
        self.parents = list(parents)
        found = []
        for node in range(len(ids)):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            found.append(self.table.logits([*self.text, *(ids[n] for n in path)]))
        return found

    def commit(self, path):
        self.text += [self.last[node] for node in path]
        if self.forgetful and path[-1] in self.parents:
            self.text.append(self.last[self.parents.index(path[-1])])
