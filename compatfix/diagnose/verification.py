"""Suspects in the target's verification: rollback, several tokens at once, siblings that see one another."""

from __future__ import annotations

from typing import Any

from compatfix.diagnose.pair import Pair
from compatfix.diagnose.plain_text import Trace, restore
from compatfix.diagnose.toggle import NotHere, Suspect, Toggle
from compatfix.validate.caches import settle
from compatfix.validate.entries import Entry
from compatfix.validate.plain import uncached_rows
from compatfix.validate.watch import Forward, Tamper, Watch

SIBLINGS = "Do the nodes of a tree see only their own root path?"
SEVERAL = "Does a verification of several tokens give what one token at a time gives?"
STEP = "compatfix gate TREE --target TARGET --patch copy, then compatfix patch TREE"


class RolledBack(Tamper):
    """Before each verification the target's cache is that of plain decoding of what was committed."""

    def __init__(self, pair: Pair) -> None:
        self._trace = Trace(pair.target)

    def before_verify(self, watch: Watch, cache: Any) -> None:
        # Inside a verification the runtime withholds recurrent states, and would not read what is written there.
        if not settle(cache, len(watch.committed)):
            raise NotHere("the runtime refuses to settle the target's cache")
        restore(cache, self._trace.follow(watch.committed), len(watch.committed))


class ByPath(Tamper):
    """Each node's logits and hidden states are those of an uncached forward over its root path."""

    def __init__(self, pair: Pair) -> None:
        self._target = pair.target

    def after_verify(self, watch: Watch, forward: Forward, output: Any) -> None:
        if forward is watch.prefill:
            return
        parents = set(forward.parents)
        paths = [forward.path_to(leaf) for leaf in range(len(forward.tokens)) if leaf not in parents]
        texts = [[*forward.committed, *(forward.tokens[node] for node in path)] for path in paths]
        states = list(output.hidden_states or ())
        logits = output.logits.clone()
        changed = [None if state is None else state.clone() for state in states]
        with watch.quiet():
            plain = uncached_rows(self._target, texts, hidden=bool(states))
        for path, alone in zip(paths, plain, strict=True):
            for offset, node in enumerate(path):
                at = len(forward.committed) + offset
                logits[0, node] = alone.logits[at].to(logits)
                for own, other in zip(changed, alone.hidden, strict=False):
                    if own is not None:
                        own[0, node] = other[at].to(own)
        output.logits = logits
        if states:
            output.hidden_states = tuple(changed)


def suspects(pair: Pair) -> list[Suspect]:
    question = "Does a verification find the state of what was committed, and nothing of rejected tokens?"
    state = "target's cache as plain decoding leaves it"
    rollback = Toggle(state, STEP, lambda: RolledBack(pair), repairs_text=True)
    tree = pair.bench.tree
    return [
        Suspect("rollback", question, "CF950", (rollback,)),
        _by_path(pair, "siblings", SIBLINGS, "every node from a forward over its root path", "tree", tree.tree),
        _by_path(
            pair, "several tokens at once", SEVERAL, "every token from a forward of its own text", "chain", tree.chain
        ),
    ]


def _by_path(pair: Pair, name: str, question: str, toggle: str, mode: str, entry: Entry | None) -> Suspect:
    if entry is None:
        return Suspect(name, question, "CF950", reason=f"no {mode}")
    made = Toggle(toggle, STEP, lambda: ByPath(pair), modes=(mode,), repairs_text=True)
    return Suspect(name, question, "CF950", (made,))
