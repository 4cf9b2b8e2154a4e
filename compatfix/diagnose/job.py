"""The worker's side: load the pair, measure it as it runs, toggle every suspect, keep the best repair, and again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch

from compatfix.diagnose import basis, block, context, draft_weights, head, precision, prompts, rope, verification
from compatfix.diagnose.measure import Bank, Outcomes, Raised
from compatfix.diagnose.pair import Pair
from compatfix.diagnose.ranking import FEWEST, Measured, as_bad_as_random, chosen
from compatfix.diagnose.toggle import NotHere, Suspect, Toggle
from compatfix.diagnose.verdicts import Level, verdicts
from compatfix.serial import to_plain
from compatfix.validate import weights
from compatfix.validate.entries import TreeError
from compatfix.validate.load_model import Incomplete
from compatfix.validate.measure import stop_tokens
from compatfix.worker import JobError

LEVELS = 4


class Progress(Protocol):
    def __call__(self, stage: str, done: int | None = None, total: int | None = None) -> None: ...


def run(args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Returns the section "diagnosis" of a report. Raises JobError where the pair cannot be run at all."""
    torch.set_num_threads(int(args.get("threads", 1)))
    try:
        pair = _pair(args, progress)
        return _diagnosed(pair, args, progress)
    except TreeError as error:
        raise JobError(f"{error.code}: {error}; compatfix gate says more") from error
    except Incomplete as error:
        hint = error.detail.get("hint")
        raise JobError(f"CF912: {error}" + (f"; {hint}" if hint else "")) from error


def _pair(args: dict[str, Any], progress: Progress) -> Pair:
    bench = weights.load_bench({**args, "incomplete_draft": True}, progress)
    target = Path(args["target"])
    texts = tuple(args["texts"] or weights.TEXTS)
    tokenizer = None
    if bench.prompts:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    reference = args.get("reference")
    return Pair(
        bench,
        target,
        Path(args["draft"]),
        tokenizer,
        texts,
        args["chat"],
        None if reference is None else Path(reference),
    )


def suspects_of(pair: Pair) -> list[Suspect]:
    """Every suspect, from the narrowest repair to the widest: where two explain the same, the earlier is named."""
    modules = (draft_weights, block, context, rope, basis, head, verification, precision, prompts)
    found = [suspect for module in modules for suspect in module.suspects(pair)]
    # A rollback that is repaired mends features too, and verification node by node mends both.
    order = ["features", "layer ids", "rollback", "siblings", "several tokens at once"]
    early = [suspect for suspect in found if suspect.name not in order]
    return [*early, *sorted((s for s in found if s.name in order), key=lambda s: order.index(s.name))]


def _diagnosed(pair: Pair, args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    everything = suspects_of(pair)
    suspects = _named(everything, args["only"]) if args.get("only") else everything
    bank = _bank(pair, args)
    progress("as it runs", 0, None)
    try:
        start = bank.all(())
    except (Raised, NotHere) as error:
        raise JobError(f"the tree raised {error}; run compatfix gate first, which finds out why") from error
    progress("an untrained draft", 0, None)
    floor = bank.all((draft_weights.floor(pair),))
    levels, failed = _eliminate(bank, suspects, start, progress, args.get("levels", LEVELS))
    ended = levels[-1].before
    main = bank.modes[0].name
    hopeless = as_bad_as_random(_accepted(ended, main), _accepted(floor, main))
    found = verdicts(suspects, [Level(level.measured, level.choice) for level in levels], failed, hopeless)
    return {
        "modes": [mode.name for mode in bank.modes],
        "prompts": len(bank.prompts),
        "tokens": bank.tokens,
        "runs": bank.runs,
        "block": pair.bench.block,
        "baseline": _means(start),
        "wrong_texts": {mode: sum(bool(outcome.wrong) for outcome in rows) for mode, rows in start.items()},
        "repaired": _means(ended),
        "repaired_wrong_texts": {mode: sum(bool(outcome.wrong) for outcome in rows) for mode, rows in ended.items()},
        "floor": _means(floor),
        "levels": [
            {"repair": level.choice.suspect, "toggle": level.choice.toggle, "accepted": _means(after.before)}
            for level, after in pairwise(levels)
            if level.choice is not None
        ],
        "suspects": [to_plain(verdict) for verdict in found],
        "left_out": [suspect.name for suspect in everything if suspect not in suspects],
    }


def _named(suspects: Sequence[Suspect], names: Sequence[str]) -> list[Suspect]:
    known = [suspect.name for suspect in suspects]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise JobError(f"no suspect {unknown[0]!r}; suspects are {', '.join(known)}")
    return [suspect for suspect in suspects if suspect.name in names]


def _bank(pair: Pair, args: dict[str, Any]) -> Bank:
    bench = pair.bench
    modes = bench.modes(args["budgets"])
    if pair.tokenizer is None:
        texts = [bench.prompt(index) for index in range(args["prompts"])]
    else:
        try:
            texts = prompts.formed(pair.tokenizer, pair.texts, pair.chat)
        except NotHere as error:
            raise JobError(str(error)) from error
    texts = texts[: args["prompts"]]
    if len(texts) < FEWEST:
        raise JobError(f"{len(texts)} prompts cannot tell a gain from luck: give at least {FEWEST} (--prompt-file)")
    return Bank(pair, texts, args["tokens"], modes, stop_tokens(bench.target))


class _Step:
    """One level while it is measured: outcomes of everything kept so far, and what each toggle made of them."""

    def __init__(self, before: Outcomes) -> None:
        self.before = before
        self.measured: list[Measured] = []
        self.choice: Measured | None = None


def _eliminate(
    bank: Bank, suspects: Sequence[Suspect], start: Outcomes, progress: Progress, most: int
) -> tuple[list[_Step], dict[str, str]]:
    """Levels of the elimination, until one chose nothing or `most` repairs are kept. Also why toggles could not be
    measured, by suspect."""
    levels, failed = [_Step(start)], dict[str, str]()
    kept: list[Toggle] = []
    done: set[str] = set()
    total = sum(len(suspect.toggles) for suspect in suspects)
    while True:
        level, number = levels[-1], 0
        for rank, suspect in enumerate(suspects):
            for toggle in suspect.toggles:
                number += 1
                if suspect.name in done:
                    continue
                where = f", with {len(kept)} repaired" if kept else ""
                progress(f"{suspect.name}: {toggle.name}{where}", number, total)
                try:
                    level.measured += bank.toggled(kept, suspect, rank, toggle, level.before)
                except (NotHere, Raised) as error:
                    failed.setdefault(suspect.name, str(error))
        level.choice = chosen(level.measured)
        if level.choice is None:
            return levels, failed
        choice = level.choice
        done.add(choice.suspect)
        kept.append(next(t for s in suspects if s.name == choice.suspect for t in s.toggles if t.name == choice.toggle))
        progress(f"with {choice.suspect} repaired", number, total)
        levels.append(_Step(bank.all(kept)))
        if len(kept) == most:
            return levels, failed


def _means(outcomes: Outcomes) -> dict[str, float]:
    return {mode: fmean(outcome.accepted for outcome in rows) for mode, rows in outcomes.items()}


def _accepted(outcomes: Outcomes, mode: str) -> list[float]:
    return [outcome.accepted for outcome in outcomes[mode]]
