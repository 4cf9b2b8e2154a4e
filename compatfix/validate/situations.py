"""Situations that ordinary prompts do not bring about. Each is arranged, and then seen to have occurred.

Forced rejections, a random draft, texts that end at a stop token or a limit, the mask token in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compatfix.validate.bench import LOOP, Bench, Mode
from compatfix.validate.cases import CASE_PROMPTS, Cases, new_at
from compatfix.validate.endings import (
    FEW_TOKENS,
    FIRST_PATH,
    length_limit,
    stop_at_once,
    stop_behind,
    stop_inside,
    stop_later,
)
from compatfix.validate.losslessness import compare_one, warm_up
from compatfix.validate.oracle import ORACLE, PARTIAL, SURE, Profile
from compatfix.validate.plain import text_config
from compatfix.validate.references import Reference, make_reference
from compatfix.validate.tally import Tally, new_tally, stopped

RANDOM = "random draft"

Report = Callable[[str, int, int], None]


def run_situations(
    bench: Bench, modes: Sequence[Mode], prompts: int, tokens: int, report: Report, *, first_prompt: int = 500
) -> dict[str, Any]:
    """All situations in all modes; the draft's own loop is one of the modes here.

    Returns {"references", "modes": tallies by mode and profile, "exercised": {mode: {situation: count}}}.
    """
    warm_up(bench, modes)
    everything = [*modes, LOOP] if bench.tree.loop else list(modes)
    references = [make_reference(bench, first_prompt + i, tokens, with_tree=False) for i in range(prompts)]
    exercised: dict[str, dict[str, int]] = {}
    tallies: list[Tally] = []
    steps = 2 + len(CASES)
    total = len(everything) * steps
    small = min((mode.budget for mode in modes if mode.budget), default=None)
    for number, mode in enumerate(everything):
        plans: list[tuple[str, Profile | None]] = [(PARTIAL.name, PARTIAL)]
        if mode.kind == "loop":
            plans.append((ORACLE.name, ORACLE))
        elif mode.budget in (None, small):
            # A random draft commits a token a round: one budget is slow enough.
            plans.append((RANDOM, None))
        lengths: dict[str, dict[int, list[int]]] = {}
        for step, (name, profile) in enumerate(plans):
            report(f"{name}, {mode.name}", number * steps + step, total)
            tally, lengths[name] = _all_prompts(bench, mode, name, profile, references, tokens)
            tallies.append(tally)
        cases = Cases(bench, mode, new_tally(mode.name, "situations", 0, 0), references, lengths[PARTIAL.name])
        for step, (name, case) in enumerate(CASES.items(), start=2):
            report(f"{name}, {mode.name}", number * steps + step, total)
            if not stopped(cases.tally):
                case(cases)
        tallies.append(cases.tally)
        exercised[mode.name] = cases.seen
    return {"references": [], "modes": tallies, "exercised": exercised}


def _all_prompts(
    bench: Bench, mode: Mode, name: str, profile: Profile | None, references: Sequence[Reference], tokens: int
) -> tuple[Tally, dict[int, list[int]]]:
    """The tally, and the tokens committed per round by the index of the reference."""
    tally, lengths = new_tally(mode.name, name, len(references), tokens), {}
    for reference in references:
        if stopped(tally):
            break
        lengths[reference.index] = compare_one(bench, mode, tally, reference, tokens, profile).lengths
    return tally, lengths


def _full(cases: Cases) -> None:
    """A draft that is always right: every level of a block is accepted."""
    for reference in cases.references[:CASE_PROMPTS]:
        before = cases.tally["accepted"]["full"]
        cases.run(reference, 32, where="full acceptance")
        cases.count("full acceptance", cases.tally["accepted"]["full"] - before)
    # A tree spreads its nodes over siblings unless the draft is sure: only then it is as deep as the block.
    if cases.mode.kind == "tree" and cases.references and not stopped(cases.tally):
        cases.run(cases.references[0], 32, where="acceptance of whole depth", profile=SURE)


def _mask(cases: Cases) -> None:
    """The target emits the token that serves as the draft's mask: it belongs to the text like any other."""
    name = "mask token in the output"
    cases.plan(name)
    found = [(reference, new_at(reference, FIRST_PATH)) for reference in cases.references]
    for reference, places in [pair for pair in found if pair[1]][:CASE_PROMPTS]:
        cases.run(reference, 24, mask=reference.tokens[places[0]], where=name)
        cases.count(name, 1)


def _prompt(cases: Cases) -> None:
    """A stop token or the mask token in the prompt: neither ends or thins out anything. And no stop tokens at all."""
    names = ("stop token in the prompt", "mask token in the prompt")
    cases.plan(*names)
    found = ((r, next((t for t in r.prompt if t not in r.tokens), None)) for r in cases.references)
    usable = [(reference, token) for reference, token in found if token is not None][:2]
    for number, (reference, token) in enumerate(usable):
        stops = (*cases.unused(reference, 1), token)
        if number == 0:
            cases.run(reference, FEW_TOKENS, stops=stops, where=names[0])
            cases.count(names[0], 1)
        if number == len(usable) - 1:
            # In the same run, because its length would show either.
            cases.run(reference, FEW_TOKENS, stops=None, mask=token, where=names[1])
            cases.count(names[1], 1)


CASES: dict[str, Callable[[Cases], None]] = {
    "full acceptance": _full,
    "stop tokens inside paths": stop_inside,
    "a stop token at once": stop_at_once,
    "stop tokens in later rounds": stop_later,
    "stop tokens behind paths": stop_behind,
    "mask tokens": _mask,
    "length limits": length_limit,
    "prompts": _prompt,
}


def windows(bench: Bench) -> dict[str, int]:
    """Sizes of the sliding windows that target and draft really have, by whose they are."""
    found = {}
    for name, config in (("target", text_config(bench.target)), ("draft", bench.draft.config)):
        size = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None)
        uses = "sliding_attention" in kinds if kinds else bool(getattr(config, "use_sliding_window", True))
        if isinstance(size, int) and uses:
            found[name] = size
    return found


def conv_kernel(bench: Bench) -> int | None:
    """The width of the short convolutions, where the target has some."""
    config = text_config(bench.target)
    for name in ("linear_conv_kernel_dim", "conv_L_cache", "mamba_d_conv", "conv_kernel"):
        size = getattr(config, name, None)
        if isinstance(size, int):
            return size
    return None
