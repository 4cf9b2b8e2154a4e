"""Situations that ordinary prompts do not bring about. Each is arranged, and then seen to have occurred.

Forced rejections, a random draft, stop tokens inside an accepted path, the mask token in the text, a length limit in
the middle of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compatfix.validate.bench import LOOP, Bench, Mode, Run
from compatfix.validate.losslessness import compare_one, warm_up
from compatfix.validate.oracle import ALWAYS, ORACLE, PARTIAL, SURE, Profile
from compatfix.validate.plain import text_config
from compatfix.validate.references import Reference, make_reference
from compatfix.validate.tally import Tally, new_tally, stopped

RANDOM = "random draft"
CASE_PROMPTS = 3
LIMIT = 6
PROMPT_TOKENS = 12
# Where a stop or mask token is looked for in the reference text: inside the first accepted path.
FIRST, LAST = 2, 9

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
    exercised: dict[str, dict[str, int]] = {mode.name: {} for mode in everything}
    tallies: list[Tally] = []
    total = len(everything) * 7
    small = min((mode.budget for mode in modes if mode.budget), default=None)
    for number, mode in enumerate(everything):
        plans: list[tuple[str, Profile | None]] = [(PARTIAL.name, PARTIAL)]
        if mode.kind == "loop":
            plans.append((ORACLE.name, ORACLE))
        elif mode.budget in (None, small):
            # A random draft commits a token a round: one budget is slow enough.
            plans.append((RANDOM, None))
        for step, (name, profile) in enumerate(plans):
            report(f"{name}, {mode.name}", number * 7 + step, total)
            tallies.append(_all_prompts(bench, mode, name, profile, references, tokens))
        cases = new_tally(mode.name, "situations", 0, 0)
        for step, case in enumerate((_full, _stop, _mask, _limit, _prompt), start=2):
            report(f"{case.__name__.strip('_')} case, {mode.name}", number * 7 + step, total)
            if not stopped(cases):
                case(bench, mode, cases, references, exercised[mode.name])
        tallies.append(cases)
    return {"references": [], "modes": tallies, "exercised": exercised}


def _all_prompts(
    bench: Bench, mode: Mode, name: str, profile: Profile | None, references: Sequence[Reference], tokens: int
) -> Tally:
    tally = new_tally(mode.name, name, len(references), tokens)
    for reference in references:
        if stopped(tally):
            break
        compare_one(bench, mode, tally, reference, tokens, profile)
    return tally


def _full(bench: Bench, mode: Mode, tally: Tally, references: Sequence[Reference], seen: dict[str, int]) -> None:
    """A draft that is always right: every level of a block is accepted."""
    for reference in references[:CASE_PROMPTS]:
        before = tally["accepted"]["full"]
        _run(bench, mode, tally, reference, 32, where="full acceptance")
        seen["full acceptance"] = seen.get("full acceptance", 0) + tally["accepted"]["full"] - before
    # A tree spreads its nodes over siblings unless the draft is sure: only then it is as deep as the block.
    if mode.kind == "tree" and references and not stopped(tally):
        _run(bench, mode, tally, references[0], 32, where="acceptance of whole depth", profile=SURE)


def _stop(bench: Bench, mode: Mode, tally: Tally, references: Sequence[Reference], seen: dict[str, int]) -> None:
    """The text must end at a stop token although more was accepted behind it."""
    seen["stop token inside a path"] = 0
    done = 0
    for reference in references:
        at = _first_occurrence(reference)
        if at is None or done == CASE_PROMPTS:
            continue
        done += 1
        stop = reference.tokens[at]
        # Several ids, and the one that is hit is not the first.
        stops = (*_unused(bench, reference, done % 2 + 1), stop)
        run = _run(bench, mode, tally, reference, 32, stops=stops, where="stop token inside a path")
        last = run.watch.rounds[-1] if run.watch.rounds else None
        if last is not None and stop in [last.tokens[node] for node in last.walk()[:-1]]:
            seen["stop token inside a path"] += 1


def _prompt(bench: Bench, mode: Mode, tally: Tally, references: Sequence[Reference], seen: dict[str, int]) -> None:
    """A stop token or the mask token in the prompt: neither ends or thins out anything. And no stop tokens at all."""
    names = ("stop token in the prompt", "mask token in the prompt")
    seen.update(dict.fromkeys(names, 0))
    found = ((r, next((t for t in r.prompt if t not in r.tokens), None)) for r in references)
    usable = [(reference, token) for reference, token in found if token is not None][:2]
    for number, (reference, token) in enumerate(usable):
        stops = (*_unused(bench, reference, 1), token)
        if number == 0:
            _run(bench, mode, tally, reference, PROMPT_TOKENS, stops=stops, where=names[0])
            seen[names[0]] += 1
        if number == len(usable) - 1:
            # In the same run, because its length would show either.
            _run(bench, mode, tally, reference, PROMPT_TOKENS, stops=None, mask=token, where=names[1])
            seen[names[1]] += 1


def _unused(bench: Bench, reference: Reference, count: int) -> list[int]:
    """Tokens that occur neither in the prompt nor in the text."""
    known = {*reference.prompt, *reference.tokens}
    return [token for token in bench.plain_tokens if token not in known][:count]


def _mask(bench: Bench, mode: Mode, tally: Tally, references: Sequence[Reference], seen: dict[str, int]) -> None:
    """The target emits the token that serves as the draft's mask: it belongs to the text like any other."""
    seen["mask token in the output"] = 0
    done = 0
    for reference in references:
        at = _first_occurrence(reference)
        if at is None or done == CASE_PROMPTS:
            continue
        done += 1
        _run(bench, mode, tally, reference, 24, mask=reference.tokens[at], where="mask token in the output")
        seen["mask token in the output"] += 1


def _limit(bench: Bench, mode: Mode, tally: Tally, references: Sequence[Reference], seen: dict[str, int]) -> None:
    """The length limit falls inside an accepted path."""
    seen["length limit inside a path"] = 0
    for reference in references[:CASE_PROMPTS]:
        run = _run(bench, mode, tally, reference, LIMIT, where="length limit inside a path")
        if run.error is None and 1 + sum(run.lengths) > LIMIT:
            seen["length limit inside a path"] += 1


def _run(
    bench: Bench,
    mode: Mode,
    tally: Tally,
    reference: Reference,
    tokens: int,
    *,
    stops: Sequence[int] | None = (),
    mask: int | None = None,
    where: str,
    profile: Profile = ALWAYS,
) -> Run:
    tally["planned"] += 1
    tally["tokens_planned"] += tokens
    return compare_one(bench, mode, tally, reference, tokens, profile, mask=mask, stops=stops, where=where)


def _first_occurrence(reference: Reference) -> int | None:
    """An index inside the first block whose token is new there: neither in the prompt nor earlier in the text."""
    for index in range(FIRST, LAST):
        token = reference.tokens[index]
        if token not in reference.tokens[:index] and token not in reference.prompt:
            return index
    return None


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
