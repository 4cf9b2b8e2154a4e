"""Suspects in the target's verification: rollback, several tokens at once, siblings that see one another."""

from __future__ import annotations

from typing import Any

from compatfix.diagnose.pair import Pair
from compatfix.diagnose.plain_text import Trace, restore
from compatfix.diagnose.toggle import Suspect, Toggle
from compatfix.validate.caches import settle
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
        settle(cache, len(watch.committed))
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
    return [Suspect("rollback", question, "CF950", (rollback,)), _siblings(pair), _several(pair)]


def _siblings(pair: Pair) -> Suspect:
    if pair.bench.tree.tree is None:
        return Suspect("siblings", SIBLINGS, "CF950", reason="no tree")
    name = "every node from a forward over its root path"
    toggle = Toggle(name, STEP, lambda: ByPath(pair), modes=("tree",), repairs_text=True)
    return Suspect("siblings", SIBLINGS, "CF950", (toggle,))


def _several(pair: Pair) -> Suspect:
    if pair.bench.tree.chain is None:
        return Suspect("several tokens at once", SEVERAL, "CF950", reason="no chain")
    name = "every token from a forward of its own text"
    toggle = Toggle(name, STEP, lambda: ByPath(pair), modes=("chain",), repairs_text=True)
    return Suspect("several tokens at once", SEVERAL, "CF950", (toggle,))
