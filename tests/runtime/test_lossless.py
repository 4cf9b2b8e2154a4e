"""Every kind of target generates what plain greedy decoding generates, whatever the draft proposes.

Here the chosen strategy of each kind, four prompts of 32 tokens. `make sweep` runs every strategy, 20 prompts of 64
tokens for each budget, and writes the table of reports/sweep/lossless.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from compatfix.runtime.strategies.base import Record

from . import blocks, tiny
from .blocks import Session, target
from .generation import Outcome, generate

KINDS = list(tiny.STRATEGIES)
BUDGETS: list[int | None] = [None, 1, 24, 64]
# Below the window of 8, over its edge while generating, and beyond it.
LENGTHS = [3, 7, 12, 30]
TOKENS = 32

SWEEP_PROMPTS, SWEEP_TOKENS = 20, 64
# The chosen strategy of every kind first.
SWEPT = [
    (kind, tiny.STRATEGIES[kind][place])
    for place in range(max(map(len, tiny.STRATEGIES.values())))
    for kind in KINDS
    if place < len(tiny.STRATEGIES[kind])
]
# Steps is plain decoding, one forward per node: at these budgets a few prompts take as long as all else.
FEW_PROMPTS, COSTLY = 5, ("steps", (24, 64))
# So many prompts of each strategy and budget have every node of two paths per round compared with a plain forward.
COMPARED = 5
REPORTS = Path(__file__).parents[2] / "reports" / "sweep"


@cache
def truth(kind: str, length: int, seed: int, count: int) -> tuple[int, ...]:
    return tuple(tiny.greedy(tiny.shared(kind), tiny.prompt(length, seed), count))


def outcome_of(
    kind: str, strategy: str | None, length: int, seed: int, count: int, budget: int | None, checks: int = 2
) -> Outcome:
    session = Session(target(kind, strategy), length, seed)
    return generate(session, truth(kind, length, seed, count + 16), count, budget, seed=seed, checks=checks)


@pytest.mark.parametrize("kind", KINDS)
def test_the_chosen_strategy_is_lossless(kind: str, record_property: Any) -> None:
    outcomes = []
    for index, length in enumerate(LENGTHS):
        # Which budget meets which length differs from kind to kind.
        budget = BUDGETS[(index + KINDS.index(kind)) % len(BUDGETS)]
        outcome = outcome_of(kind, None, length, index + 1, TOKENS, budget)
        assert outcome.text == list(truth(kind, length, index + 1, TOKENS + 16)[:TOKENS]), (length, budget)
        outcomes.append(outcome)
    record_property("worst node difference", max(outcome.worst for outcome in outcomes))
    assert_near(outcomes)
    assert_everything_occurred(outcomes)


@pytest.mark.parametrize(("kind", "budget"), [("qwen3_5", 24), ("bamba", None)])
def test_a_state_that_is_not_moved_is_seen(kind: str, budget: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = outcome_of(kind, None, 12, 3, TOKENS, budget)
    session = Session(target(kind), 12, 3)
    expected = truth(kind, 12, 3, TOKENS + 16)
    monkeypatch.setattr(Record, "keep", lambda self, cache, path: blocks.keep_keys_only(cache, self.start, path))
    wrong = generate(session, expected, TOKENS, budget, seed=3, checks=2)
    assert right.text == list(expected[:TOKENS]) != wrong.text
    assert wrong.worst > 1


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "strategy"), SWEPT, ids=lambda value: value.replace(" ", "-"))
def test_every_strategy_is_lossless_on_every_budget(kind: str, strategy: str) -> None:
    row = row_of(kind, strategy)
    write(row)
    assert row.lossless == row.prompts


@dataclass(frozen=True)
class Row:
    """One strategy on one kind of target; sequences go with BUDGETS."""

    kind: str
    strategy: str
    lossless: Sequence[int]
    prompts: Sequence[int]
    lengths: Sequence[float]  # mean accepted length: tokens per round, the target's own included
    worst: float


def row_of(kind: str, strategy: str) -> Row:
    right, prompts, lengths, everything = [], [], [], []
    for budget in BUDGETS:
        costly = strategy == COSTLY[0] and budget in COSTLY[1]
        count = FEW_PROMPTS if costly else SWEEP_PROMPTS
        outcomes = []
        for index in range(count):
            length, seed = LENGTHS[index % len(LENGTHS)] + index // len(LENGTHS), index + 1
            checks = 2 if index < COMPARED else 0
            outcomes.append((outcome_of(kind, strategy, length, seed, SWEEP_TOKENS, budget, checks), length, seed))
        right.append(sum(o.text == list(truth(kind, n, s, SWEEP_TOKENS + 16)[:SWEEP_TOKENS]) for o, n, s in outcomes))
        prompts.append(count)
        rounds = [accepted + 1 for outcome, _, _ in outcomes for accepted in outcome.accepted]
        lengths.append(sum(rounds) / len(rounds))
        everything += [outcome for outcome, _, _ in outcomes]
    assert_near(everything)
    assert_everything_occurred(everything)
    return Row(kind, strategy, right, prompts, lengths, max(outcome.worst for outcome in everything))


def assert_near(outcomes: Sequence[Outcome]) -> None:
    worst, largest = max(o.worst for o in outcomes), max(o.largest for o in outcomes)
    assert 0 <= worst <= blocks.TOLERANCE * (1 + largest)
    assert largest > 0  # something was compared


def assert_everything_occurred(outcomes: Sequence[Outcome]) -> None:
    assert sum(outcome.rejected_at_once for outcome in outcomes) > 0
    assert sum(outcome.accepted_in_part for outcome in outcomes) > 0
    assert sum(outcome.accepted_whole for outcome in outcomes) > 0


def write(row: Row) -> None:
    """Keeps a row, and makes the table anew of all that are kept: several processes may share a sweep."""

    def kept(kind: str, strategy: str) -> Path:
        return REPORTS / "lossless" / f"{kind}-{strategy.replace(' ', '-')}.json"

    (REPORTS / "lossless").mkdir(parents=True, exist_ok=True)
    kept(row.kind, row.strategy).write_text(json.dumps(vars(row)))
    found = [kept(kind, strategy) for kind in KINDS for strategy in tiny.STRATEGIES[kind]]
    lines = [line(Row(**json.loads(path.read_text()))) for path in found if path.exists()]
    (REPORTS / "lossless.md").write_text("\n".join([*header(), *lines]) + "\n")


def header() -> list[str]:
    names = ["chain" if budget is None else f"tree {budget}" for budget in BUDGETS]
    titles = ["model", "strategy", *(f"{name}: right" for name in names), "accepted length", "worst node"]
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]


def line(row: Row) -> str:
    right = [f"{n}/{of}" for n, of in zip(row.lossless, row.prompts, strict=True)]
    lengths = " ".join(f"{length:.2f}" for length in row.lengths)
    return f"| {' | '.join([row.kind, row.strategy, *right, lengths, f'{row.worst:.1e}'])} |"
