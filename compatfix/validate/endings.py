"""Where a text must end: at a stop token, wherever in a round it falls, and at the length limit, however small."""

from __future__ import annotations

from itertools import accumulate

from compatfix.validate.cases import CASE_PROMPTS, Cases, new_at
from compatfix.validate.oracle import ALWAYS, PARTIAL, Profile
from compatfix.validate.references import Reference

INSIDE = "stop token inside a path"
AT_ONCE = "first token is a stop"
LATER = "stop token in a later round"
BEHIND = "stop token behind an accepted path"
LIMIT_INSIDE = "length limit inside a path"
LIMIT_SMALL = "length limit of one token"
LIMIT = 6
SMALL_LIMITS = (1, 2)
FEW_TOKENS = 12
# Inside the first accepted path: where a stop or mask token is looked for in the reference text.
FIRST_PATH = range(2, 9)
# More stop tokens than any model has, one of which is hit.
OTHER_STOPS = 5


def stop_inside(cases: Cases) -> None:
    """The text must end at a stop token although more was accepted behind it."""
    cases.plan(INSIDE)
    found = [(reference, new_at(reference, FIRST_PATH)) for reference in cases.references]
    for number, (reference, places) in enumerate([pair for pair in found if pair[1]][:CASE_PROMPTS], start=1):
        stop = reference.tokens[places[0]]
        # Several ids, and the one that is hit is not the first.
        stops = (*cases.unused(reference, number % 2 + 1), stop)
        run = cases.run(reference, 32, stops=stops, where=INSIDE)
        last = run.watch.rounds[-1] if run.watch.rounds else None
        if last is not None and stop in [last.tokens[node] for node in last.walk()[:-1]]:
            cases.count(INSIDE, 1)


def stop_at_once(cases: Cases) -> None:
    """The target's first token, which no draft proposed, is a stop token: the last of many."""
    cases.plan(AT_ONCE)
    for reference in sorted(cases.references, key=lambda one: not new_at(one, [0]))[:1]:
        stops = (*cases.unused(reference, OTHER_STOPS), reference.tokens[0])
        run = cases.run(reference, FEW_TOKENS, stops=stops, where=AT_ONCE)
        cases.count(AT_ONCE, run.error is None)


def stop_later(cases: Cases) -> None:
    """A stop token behind the first round's path: the first of many."""
    cases.plan(LATER)
    for reference, place, profile in _later(cases)[:1]:
        stops = (reference.tokens[place], *cases.unused(reference, OTHER_STOPS))
        run = cases.run(reference, len(reference.tokens), stops=stops, where=LATER, profile=profile)
        cases.count(LATER, len(run.watch.rounds) > 1)


def _later(cases: Cases) -> list[tuple[Reference, int, Profile]]:
    """A whole block is behind the first of these places; or else, where texts repeat themselves, the latest new token
    that forced rejections leave to a later round."""
    block = cases.bench.block
    far = [(r, places[0], ALWAYS) for r in cases.references if (places := new_at(r, range(block + 1, 2 * block)))]
    if far:
        return far
    near = [
        (reference, place, PARTIAL)
        for reference in cases.references
        for place in new_at(reference, range(sum(cases.lengths.get(reference.index, (block,))[:1]) + 1, 2 * block))
    ]
    return sorted(near, key=lambda one: -one[1])


def stop_behind(cases: Cases) -> None:
    """The token that the target adds to an accepted path is a stop token, in an early round and in a late one."""
    cases.plan(BEHIND)
    found = []
    for reference in cases.references:
        # Where a round begins is where the round before it ended.
        begins = list(accumulate(cases.lengths.get(reference.index, ())))[:-1]
        found += [(reference, place) for place in new_at(reference, begins)]
    found.sort(key=lambda one: one[1])
    for reference, place in [*found[:1], *found[1:][-1:]]:
        stop = reference.tokens[place]
        stops = (*cases.unused(reference, 1), stop)
        run = cases.run(reference, len(reference.tokens), stops=stops, where=BEHIND, profile=PARTIAL)
        ends = [forward.argmax[forward.walk()[-1]] for forward in run.watch.rounds[-2:]]
        cases.count(BEHIND, stop in ends)


def length_limit(cases: Cases) -> None:
    """The length limit falls inside an accepted path; and it is smaller than any round."""
    cases.plan(LIMIT_INSIDE, LIMIT_SMALL)
    for reference in cases.references[:CASE_PROMPTS]:
        run = cases.run(reference, LIMIT, where=LIMIT_INSIDE)
        cases.count(LIMIT_INSIDE, run.error is None and 1 + sum(run.lengths) > LIMIT)
    for reference, limit in zip(cases.references, SMALL_LIMITS, strict=False):
        run = cases.run(reference, limit, where=f"length limit of {limit}")
        cases.count(LIMIT_SMALL, run.error is None and limit == 1)
