"""A whole speculative generation on the runtime, with an oracle for a draft that follows the text as it is generated.

The oracle is that of `compatfix.validate`: it knows what plain decoding says behind the present text, also after the
text has left the reference. What it proposes changes from round to round: by chance one of three candidates, nothing
that is right, everything right.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

import compatfix.runtime as runtime
from compatfix.validate.oracle import ALWAYS, NEVER, ORACLE, Truth

from . import blocks, tiny
from .blocks import Session, depths, path_to

BLOCK = 8
CANDIDATES = 3
ROUNDS = (ORACLE, NEVER, ORACLE, ALWAYS)
# Chances of the candidates of a depth, for the choice of the nodes of a tree.
CHANCES = (0.6, 0.25, 0.15)


@dataclass
class Outcome:
    """What came of one generation. `accepted` are the lengths of the accepted paths, without the root."""

    text: list[int]
    accepted: list[int] = field(default_factory=list)
    rejected_at_once: int = 0
    accepted_in_part: int = 0
    accepted_whole: int = 0
    worst: float = 0.0  # largest |logit of a node - logit of a plain forward over its root path|
    largest: float = 0.0  # largest |logit| met


def generate(
    session: Session, truth: Sequence[int], count: int, budget: int | None, seed: int = 0, checks: int | None = None
) -> Outcome:
    """`count` tokens behind the session's prompt; `truth` is what plain decoding says there.

    `budget` is the number of tree nodes beside the root, None a chain of BLOCK tokens. `checks` bounds the number of
    paths per round that are compared with a plain forward (None: all of them).
    """
    prompt = session.prompt[0].tolist()
    follower = Truth(session.model, nullcontext)
    follower.start(prompt, truth)
    outcome = Outcome([int(session.prefill.logits[0, -1].argmax())])
    while len(outcome.text) < count:
        text, index = prompt + outcome.text, len(outcome.accepted)
        candidates = propose(follower, text, index, seed)
        ids, parents = chain(candidates, text[-1]) if budget is None else tree(candidates, text[-1], budget)
        output = session.verify_chain(ids) if budget is None else session.verify(ids, parents)
        logits = output.logits[0]
        compare(session.model, text, ids, parents, logits, outcome, checks)
        path, bonus = walk(ids, parents, logits.argmax(-1).tolist())
        if budget is None:
            runtime.crop_to(session.cache, len(text) - 1 + len(path))
        else:
            runtime.commit(session.cache, path)
        outcome.text += [*(ids[node] for node in path[1:]), bonus]
        tally(outcome, len(path) - 1, max(depths(parents)))
    outcome.text = outcome.text[:count]
    return outcome


def propose(follower: Truth, text: Sequence[int], index: int, seed: int) -> list[list[int]]:
    """Three candidates for each of the BLOCK - 1 places behind `text`, the most likely first."""
    profile = ROUNDS[index % len(ROUNDS)]
    following = follower.after(text, BLOCK - 1)
    found = []
    for place in range(BLOCK - 1):
        position = len(text) + place
        true = following[place] if place < len(following) else None
        rank = None if true is None else profile.rank(position, place + 1, index, seed)
        draw = random.Random(seed * 7919 + position)
        decoys = [token for token in draw.sample(range(1, tiny.VOCAB), CANDIDATES + 1) if token != true]
        row = decoys[:CANDIDATES]
        if true is not None and rank is not None:
            row[rank] = true
        found.append(row)
    return found


def chain(candidates: Sequence[Sequence[int]], root: int) -> tuple[list[int], list[int]]:
    return [root, *(row[0] for row in candidates)], list(range(-1, len(candidates)))


def tree(candidates: Sequence[Sequence[int]], root: int, budget: int) -> tuple[list[int], list[int]]:
    """The `budget` likeliest nodes, best first: a node is as likely as its candidates' chances along its path."""
    ids, parents = [root], [-1]
    waiting = [(-CHANCES[rank], 0, rank, 0) for rank in range(CANDIDATES)]  # -likelihood, depth, rank, parent
    heapq.heapify(waiting)
    while waiting and len(ids) <= budget:
        likelihood, depth, rank, parent = heapq.heappop(waiting)
        ids.append(candidates[depth][rank])
        parents.append(parent)
        if depth + 1 < len(candidates):
            for following, chance in enumerate(CHANCES):
                heapq.heappush(waiting, (likelihood * chance, depth + 1, following, len(ids) - 1))
    return ids, parents


def walk(ids: Sequence[int], parents: Sequence[int], choices: Sequence[int]) -> tuple[list[int], int]:
    """The path that the target agrees with, and what it says behind it."""
    path = [0]
    while True:
        wanted = choices[path[-1]]
        following = [node for node in range(len(ids)) if parents[node] == path[-1] and ids[node] == wanted]
        if not following:
            return path, wanted
        path.append(following[0])


def compare(
    model: Any,
    text: Sequence[int],
    ids: Sequence[int],
    parents: Sequence[int],
    logits: torch.Tensor,
    outcome: Outcome,
    checks: int | None,
) -> None:
    """Compares nodes with plain forwards over their root paths, all in one batch: rows are filled up at their end."""
    if checks == 0:
        return
    ends = sorted(blocks.leaves(parents), key=lambda leaf: -depths(parents)[leaf])[:checks]
    paths = [path_to(parents, leaf) for leaf in ends]
    rows = [[*text[:-1], *(ids[node] for node in path)] for path in paths]
    longest = max(map(len, rows))
    with torch.inference_mode():
        plain = model(torch.tensor([row + [0] * (longest - len(row)) for row in rows]), use_cache=False).logits
    for path, row, own in zip(paths, rows, plain, strict=True):
        expected = own[len(text) - 1 : len(row)]
        outcome.worst = max(outcome.worst, float((logits[path] - expected).abs().max()))
        outcome.largest = max(outcome.largest, float(expected.abs().max()))


def tally(outcome: Outcome, accepted: int, deepest: int) -> None:
    outcome.accepted.append(accepted)
    outcome.rejected_at_once += accepted == 0
    outcome.accepted_whole += accepted == deepest
    outcome.accepted_in_part += 0 < accepted < deepest
