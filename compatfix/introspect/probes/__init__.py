"""Questions about a target's class, each answered by one experiment on a tiny model of it.

A probe is a function whose docstring's first line is the question. Add one: write it in the file of its subject,
decorate it with `@probe`, and list it in `PROBES`.
"""

from __future__ import annotations

from collections.abc import Callable

from compatfix.introspect.probes.bench import Bench
from compatfix.introspect.probes.cache import (
    bare_cache_works,
    cache_argument,
    cache_kinds,
    empty_cache_is_initialized,
    seq_length_counts_tokens,
)
from compatfix.introspect.probes.hidden import embedding_is_raw, head_gives_logits, hidden_states_layout
from compatfix.introspect.probes.masks import bool_mask_is_right, tree_mask_reaches_every_layer
from compatfix.introspect.probes.rollback import (
    block_equals_steps,
    crop_semantics,
    rollback_restores_state,
    snapshot_restores_state,
)
from compatfix.introspect.probes.strategy import strategy_is_exact
from compatfix.model import Answer

PROBES: tuple[Callable[[Bench], Answer], ...] = (
    cache_argument,
    bare_cache_works,
    cache_kinds,
    seq_length_counts_tokens,
    empty_cache_is_initialized,
    crop_semantics,
    rollback_restores_state,
    snapshot_restores_state,
    block_equals_steps,
    tree_mask_reaches_every_layer,
    bool_mask_is_right,
    hidden_states_layout,
    embedding_is_raw,
    head_gives_logits,
    strategy_is_exact,
)


def run_probes(bench: Bench, on_step: Callable[[str, int, int], None] = lambda *_: None) -> tuple[Answer, ...]:
    """Asks every question; an exception in one is its answer and does not end the others."""
    answers = []
    for done, ask in enumerate(PROBES):
        on_step(f"probe {getattr(ask, '__name__', 'probe')}", done, len(PROBES))
        answers.append(ask(bench))
    return tuple(answers)


__all__ = ["PROBES", "Bench", "run_probes"]
