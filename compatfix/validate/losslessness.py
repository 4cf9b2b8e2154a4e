"""The main experiment: with an oracle draft, the tree's text is that of plain decoding, in every mode and prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from compatfix.validate.bench import Bench, Mode, Run
from compatfix.validate.claims import claim_difference, field_differences, given_away
from compatfix.validate.compare import (
    draft_cache_difference,
    expected_tokens,
    feature_difference,
    node_difference,
    token_difference,
)
from compatfix.validate.localise import localise
from compatfix.validate.locate_error import locate_error
from compatfix.validate.oracle import ORACLE, Profile
from compatfix.validate.references import Reference, make_reference
from compatfix.validate.tally import Tally, add_lengths, add_times, new_tally, stopped
from compatfix.validate.watch import Forward

# Node logits are compared for the first prompts of a shard: the first rounds and a later one.
NODE_PROMPTS = 2
NODE_ROUNDS = (0, 4)
DRAFT_PROMPTS = 4
WARM_UP_TOKENS = 4


def run_losslessness(
    bench: Bench,
    indices: Sequence[int],
    tokens: int,
    modes: Sequence[Mode],
    report: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """Runs every mode on every prompt, interleaved; returns references and one tally per mode."""
    warm_up(bench, modes)
    tallies = [new_tally(mode.name, ORACLE.name, len(indices), tokens) for mode in modes]
    plain = new_tally("plain", "none", len(indices), tokens)
    references: list[dict[str, Any]] = []
    for number, index in enumerate(indices):
        report("losslessness, oracle draft", number, len(indices))
        reference = make_reference(bench, index, tokens, with_tree=not stopped(plain))
        _add_plain(plain, bench, reference, tokens)
        references.append(_summary(reference))
        for mode, tally in zip(modes, tallies, strict=True):
            if not stopped(tally):
                compare_one(bench, mode, tally, reference, tokens, ORACLE, nodes=number < NODE_PROMPTS)
        if all(stopped(tally) for tally in tallies):
            break
    return {"references": references, "plain": plain, "modes": tallies}


def warm_up(bench: Bench, modes: Sequence[Mode]) -> None:
    """The runtime measures its strategies at its first use of a model; that is not a part of what is counted."""
    for mode in modes:
        bench.run(mode, bench.prompt(3), WARM_UP_TOKENS, profile=None)


def compare_one(
    bench: Bench,
    mode: Mode,
    tally: Tally,
    reference: Reference,
    tokens: int,
    profile: Profile | None,
    *,
    nodes: bool = False,
    mask: int | None = None,
    stops: Sequence[int] | None = (),
    where: str = "",
) -> Run:
    """One generation against the reference, entered into the tally."""
    expected = expected_tokens(reference.tokens, tokens, stops)
    began = time.perf_counter()
    run = bench.run(
        mode,
        reference.prompt,
        tokens,
        reference=reference.tokens,
        profile=profile,
        salt=reference.index,
        keep_logits=nodes,
        mask=mask,
        stops=stops,
    )
    tally["seconds"] += time.perf_counter() - began
    tally["run"] += 1
    if run.error is not None:
        where_it_was = locate_error(bench, run, reference.prompt, reference.tokens)
        tally["error"] = {**run.error, "prompt": reference.index, "at": where_it_was}
        return run
    enter_counts(tally, run, bench.block, mode.budget)
    if not run.prompt_kept:
        tally["prompts"].append({"prompt": reference.index, "where": where})
    tally["changed"] += [{"prompt": reference.index, "where": where, "what": what} for what in run.changed]
    followed, short = given_away(run, reference.prompt, tokens, stops or ())
    tally["rounds_followed"] += followed
    tally["rounds_short"] += len(short)
    tally["short"] += [{"prompt": reference.index, **first} for first in short[:1]]
    difference = token_difference(bench, run, reference.prompt, expected)
    if difference is None:
        tally["same"] += 1
    else:
        entry = {"prompt": reference.index, "prompt_length": len(reference.prompt), "where": where, **difference}
        if not tally["differences"]:
            salt, count = reference.index, min(tokens, difference["index"] + bench.block)
            located, state = localise(
                bench, mode, reference.prompt, reference.tokens, count, profile=profile, salt=salt
            )
            if located:
                entry["state"] = state
        tally["differences"].append(entry)
        return run
    _check_more(bench, tally, run, reference, nodes)
    return run


def enter_counts(tally: Tally, run: Run, block: int, budget: int | None) -> None:
    """What the run did, whether it was right or not."""
    tally["tokens"] += len(run.tokens)
    tally["forwards"] += run.watch.forwards
    tally["lost"] += run.watch.lost
    tally["recomputed"] += run.recomputed
    add_lengths(tally, run.lengths)
    add_times(tally, run.stage_times)
    for number, forward in enumerate(run.watch.rounds):
        counts = run.watch.counts[1:]
        path = forward.walk()
        accepted = (counts[number] if number < len(counts) else len(path)) - 1
        deepest = max(forward.depths, default=0)
        kind = "zero" if accepted <= 0 else "full" if accepted >= deepest else "partial"
        tally["accepted"][kind] += 1
        for shape, seen in _shapes(forward, path[: accepted + 1], deepest, block, budget).items():
            tally["shapes"][shape] += seen


def _shapes(forward: Forward, path: list[int], deepest: int, block: int, budget: int | None) -> dict[str, bool]:
    """Which of `tally.SHAPES` a verified tree and the path accepted of it have.

    Nodes come in the order of their likelihood, so the first child of a node is its likeliest.
    """
    parents = forward.parents
    first: dict[int, int] = {}
    for node, parent in enumerate(parents):
        first.setdefault(parent, node)
    whole = min(block - 1, budget or block - 1)
    return {
        "siblings": len(first) < len(parents),
        # Some count the root in.
        "whole budget": budget is not None and len(parents) >= budget,
        "whole depth": deepest == whole,
        "path off the first child": any(first[parents[node]] != node for node in path[1:]),
        "path of whole depth": deepest == whole and len(path) - 1 == whole,
    }


def _check_more(bench: Bench, tally: Tally, run: Run, reference: Reference, nodes: bool) -> None:
    """Right tokens are not all: logits of the nodes, context features, the draft's own cache."""
    if nodes:
        found = node_difference(bench, run, NODE_ROUNDS)
        if found["bad"] is not None and tally["nodes"]["bad"] is None:
            tally["nodes"]["bad"] = {"prompt": reference.index, **found["bad"]}
        for name in ("nodes", "wrong_argmax"):
            tally["nodes"][name] += found[name]
        tally["nodes"]["largest"] = max(tally["nodes"]["largest"], found["largest"])
    claim = claim_difference(run)
    if claim is not None:
        tally["claims"].append({"prompt": reference.index, **claim})
    tally["lengths_compared"] += run.claimed is not None or run.unread is not None
    tally["fields"] += [{"prompt": reference.index, **wrong} for wrong in field_differences(run, reference.prompt)]
    if run.watch.noise is not None:
        tally["noise"].append({"prompt": reference.index, **run.watch.noise})
    features = feature_difference(bench, run)
    tally["features_checked"] += 1
    if features is not None:
        tally["features"].append({"prompt": reference.index, **features})
    if tally["drafts_checked"] < DRAFT_PROMPTS:
        compared, draft = draft_cache_difference(bench, run)
        tally["drafts_checked"] += compared
        if draft is not None:
            tally["draft_cache"].append({"prompt": reference.index, **draft})


def _add_plain(plain: Tally, bench: Bench, reference: Reference, tokens: int) -> None:
    """The tree's block-size-1 path is the baseline of the benchmark."""
    if reference.error is not None:
        plain["error"] = {**reference.error, "prompt": reference.index}
    if reference.plain is None:
        return
    plain["run"] += 1
    if not reference.prompt_kept:
        plain["prompts"].append({"prompt": reference.index, "where": "plain decoding"})
    plain["fields"] += [{"prompt": reference.index, **wrong} for wrong in reference.fields]
    plain["tokens"] += len(reference.plain)
    plain["same"] += reference.plain == reference.tokens[:tokens]
    plain["forwards"] += bench.watch.forwards
    plain["seconds"] += reference.seconds


def _summary(reference: Reference) -> dict[str, Any]:
    entry = asdict(reference)
    for name in ("prompt", "tokens", "plain", "seconds", "prompt_kept", "fields"):
        del entry[name]
    return {**entry, "prompt_length": len(reference.prompt), "text_length": len(reference.tokens)}
