"""Sampling: many short texts of the tree's own functions, each token held against the exact chances that it had."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compatfix.validate.bench import LOOP, PLAIN, Bench, Mode, Run
from compatfix.validate.distribution import Draws, Evidence, detectable, weigh
from compatfix.validate.followed import AHEAD, CANDIDATES, SamplingOracle, SamplingWatch
from compatfix.validate.losslessness import warm_up
from compatfix.validate.oracle import WANTED
from compatfix.validate.plain import uncached_rows
from compatfix.validate.sampler import Sampler

TEXT_TOKENS = 16
# Texts between two looks at the evidence; a tree that is wrong ends there.
BATCH = 16
FIRST_PROMPT = 900

FIRST, PLAINLY = "behind the prompt", "plain decoding"
BEHIND, AFTER_REJECTION, AFTER_ALL = "behind accepted tokens", "after a rejection", "after full acceptance"


def modes_of(bench: Bench, budgets: Sequence[int]) -> list[Mode]:
    """Everything that can sample, one tree budget: block size 1, chain, tree, and the draft's own loop."""
    return [PLAIN, *bench.modes(budgets[:1]), *([LOOP] if bench.tree.loop else [])]


def run_sampling(
    bench: Bench,
    modes: Sequence[Mode],
    sampler: Sampler,
    texts: int,
    alarm: float,
    report: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """One row per mode, as docs/report-schema.md has it. `alarm` is the chance of a false alarm per mode.

    The bench is changed: blocks become so short that whole ones are accepted now and then, draft and watch are those
    of a tree that samples.
    """
    bench.block = min(bench.block, 1 + AHEAD)
    if isinstance(getattr(bench.draft, "block_size", None), int):
        setattr(bench.draft, "block_size", bench.block)  # noqa: B010 - an attribute of the tree's own class
    oracle = SamplingOracle(bench.head, bench.truth, bench.target, lambda: bench.watch.quiet(), bench.seed)
    bench.oracle = oracle
    bench.watch = SamplingWatch(bench.target, bench.draft, bench.head, oracle, bench.tree.modules)
    warm_up(bench, [mode for mode in modes if mode.kind in ("chain", "tree")])
    return {"modes": [_row(bench, mode, sampler, texts, alarm, report) for mode in modes]}


def arguments(sampler: Sampler, names: frozenset[str]) -> dict[str, float] | str:
    """What to pass to a function with these parameters, or the parameter that it lacks."""
    wanted = {"temperature": sampler.temperature}
    wanted |= {"top_p": sampler.top_p} if sampler.top_p < 1 else {}
    wanted |= {"top_k": sampler.top_k} if sampler.top_k else {}
    return next((name for name in wanted if name not in names), wanted)


def _row(
    bench: Bench, mode: Mode, sampler: Sampler, texts: int, alarm: float, report: Callable[[str, int, int], None]
) -> dict[str, Any]:
    function, names = bench.entry_point(mode)
    row = _empty(mode, function.rpartition(".")[2], texts)
    given = arguments(sampler, names)
    if isinstance(given, str):
        return {**row, "lacks": given}
    kept: list[_Text] = []
    draws: Draws | None = None
    for number in range(texts):
        report(f"sampling, {mode.name}", number, texts)
        run, prompt = _generate(bench, mode, number, given)
        row["texts"] += 1
        if run.error is not None:
            return {**row, "error": run.error}
        row["lost"] += run.watch.lost
        kept.append(_text(bench, mode, run, prompt))
        if len(kept) % BATCH and number + 1 < texts:
            continue
        draws = _join(draws, _draws(bench, kept[-(len(kept) % BATCH or BATCH) :], sampler, row))
        evidence = weigh(draws)
        row |= _plain(evidence, len(draws))
        if evidence.p <= alarm:
            return row
    if draws is not None and len(draws):
        report(f"sampling, {mode.name}: what would have been seen", texts, texts)
        row["detectable"] = detectable(draws, alarm)
    return row


def _empty(mode: Mode, function: str, texts: int) -> dict[str, Any]:
    return {
        "mode": mode.name,
        "function": function,
        "planned": texts,
        "texts": 0,
        "tokens": 0,
        "on_the_edge": 0,
        "lost": 0,
        "lacks": None,
        "error": None,
        "p": None,
        "evidence": None,
        "detectable": None,
    }


def _plain(evidence: Evidence, tokens: int) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "p": evidence.p,
        "evidence": {
            "situation": evidence.situation,
            "way": evidence.way,
            "observed": list(evidence.observed),
            "expected": list(evidence.expected),
            "counts": dict(evidence.counts),
        },
    }


def _generate(bench: Bench, mode: Mode, number: int, given: Mapping[str, float]) -> tuple[Run, list[int]]:
    prompt = bench.prompt(FIRST_PROMPT + number)
    seed = random.Random(f"{bench.seed} {mode.name} {number}").getrandbits(32)
    torch.manual_seed(seed)
    random.seed(seed)
    profile = None if mode.kind == "plain" else CANDIDATES
    return bench.run(mode, prompt, TEXT_TOKENS, profile=profile, salt=number, sampler=given), prompt


@dataclass(frozen=True)
class _Text:
    """`situations` and `proposed` for each token behind the prompt."""

    prompt: list[int]
    tokens: list[int]
    situations: list[str]
    proposed: list[list[int]]


def _text(bench: Bench, mode: Mode, run: Run, prompt: list[int]) -> _Text:
    """What was known before each token was drawn: how its round had gone so far, and what the draft proposed there."""
    nothing = [-1] * len(WANTED)
    count = len(run.tokens)
    if not run.watch.counts:
        situations = [FIRST] + [PLAINLY] * (count - 1) if mode.kind != "plain" else [PLAINLY] * count
        return _Text(prompt, run.tokens, situations[:count], [nothing] * count)
    assert isinstance(bench.oracle, SamplingOracle)
    proposals = {proposal.length: proposal.candidates for proposal in bench.oracle.proposals}
    situations, proposed = [FIRST], [nothing]
    start, opening = 0, FIRST  # of a round: the index of its root among the tokens, and what the last one came to
    for number, forward in enumerate(run.watch.rounds):
        known = number + 1 < len(run.watch.counts)
        length = run.watch.counts[number + 1] if known else count
        candidates = proposals.get(len(prompt) + start + 1, [])
        for slot in range(1, min(length, count - 1 - start) + 1):
            situations.append(opening if slot == 1 else BEHIND)
            proposed.append(candidates[slot - 1] if slot <= len(candidates) else nothing)
        start += length
        path = forward.walk()[:length]
        opening = AFTER_REJECTION if path[-1] in forward.parents else AFTER_ALL
    # A tree that does not hand its rounds to the draft: nothing is known of the rest but the text.
    missing = max(0, count - len(situations))
    situations += [BEHIND] * missing
    proposed += [nothing] * missing
    return _Text(prompt, run.tokens, situations[:count], proposed[:count])


def _draws(bench: Bench, texts: Sequence[_Text], sampler: Sampler, row: dict[str, Any]) -> Draws:
    """Exact chances from one forward without a cache over each text; tokens on the edge of a cut are left out, which
    depends on the text before them alone."""
    with bench.watch.quiet():
        forwards = uncached_rows(bench.target, [[*text.prompt, *text.tokens] for text in texts])
    chances, tokens, situations, proposed = [], [], [], []
    for text, forward in zip(texts, forwards, strict=True):
        logits = forward.logits[len(text.prompt) - 1 : -1]
        keep = (~sampler.on_the_edge(logits)).nonzero()[:, 0].tolist()
        row["on_the_edge"] += len(text.tokens) - len(keep)
        chances.append(sampler.chances(logits[keep]))
        tokens += [text.tokens[i] for i in keep]
        situations += [text.situations[i] for i in keep]
        proposed += [text.proposed[i] for i in keep]
    return Draws(torch.cat(chances), torch.tensor(tokens), tuple(situations), torch.tensor(proposed))


def _join(draws: Draws | None, more: Draws) -> Draws:
    if draws is None:
        return more
    return Draws(
        torch.cat([draws.chances, more.chances]),
        torch.cat([draws.tokens, more.tokens]),
        (*draws.situations, *more.situations),
        torch.cat([draws.proposed, more.proposed]),
    )
