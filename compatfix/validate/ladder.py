"""The ladder: what happens to whoever starts the published code, one fix at a time.

Each rung runs the tree in a fresh process. An exception calls for the rule that fixes its place; that rule is added,
and the next rung shows the next exception. Then the fixes that everyone tries, which run and are wrong. The last
rung, the tree that is judged, comes from the main experiment.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compatfix.codes import CODES
from compatfix.model import PatchPlan
from compatfix.validate.raised import MISSING
from compatfix.validate.tally import Tally, mean_length

MAX_RUNGS = 10

# Runs the tree in a directory and returns the "smoke" task's answer.
Smoke = Callable[[Path, str], dict[str, Any]]


@dataclass(frozen=True)
class Rung:
    """One step. `status` is "raised", "wrong" (runs, other text than plain decoding) or "lossless"."""

    title: str
    codes: tuple[str, ...]
    status: str
    message: str
    place: dict[str, Any] | None = None
    accepted: dict[str, float] | None = None
    same: str | None = None
    next_code: str | None = None


def climb(tree: Path, smoke: Smoke) -> list[Rung]:
    """Rungs from the tree as it is to the fixes that everyone tries; none where no rule has anything to fix."""
    from compatfix.rewrites import plan

    whole = plan(tree)
    codes = list(dict.fromkeys(fix.code for fix in whole.fixes))
    if not codes:
        return []
    rungs: list[Rung] = []
    chosen: list[str] = []
    with tempfile.TemporaryDirectory(prefix="compatfix-ladder-") as scratch:
        while len(rungs) < MAX_RUNGS:
            title = "as published" if not chosen else f"+ {chosen[-1]} {CODES[chosen[-1]].name}"
            copy = _patched(tree, Path(scratch), chosen)
            rung, error = _rung(title, chosen, smoke(copy, title))
            # Planned anew: lines have moved.
            code = None if error is None else _rule_for(error, plan(copy), chosen)
            rungs.append(replace(rung, next_code=code))
            if code is None:
                break
            chosen.append(code)
        rungs.append(_plausible(tree, Path(scratch), smoke))
    return rungs


def _patched(tree: Path, scratch: Path, codes: Sequence[str]) -> Path:
    from compatfix.rewrites import copy_tree, plan, write_copy

    copy = copy_tree(tree, Path(tempfile.mkdtemp(dir=scratch)))
    if codes:
        write_copy(plan(copy, select=codes))
    return copy


def _plausible(tree: Path, scratch: Path, smoke: Smoke) -> Rung:
    from compatfix.rewrites import copy_tree, plausible_fix

    copy = copy_tree(tree, Path(tempfile.mkdtemp(dir=scratch)))
    planned = plausible_fix(copy)
    title = "the fixes that everyone tries"
    return _rung(title, sorted({fix.code for fix in planned.fixes}), smoke(copy, title))[0]


def _rung(title: str, codes: Sequence[str], answer: dict[str, Any]) -> tuple[Rung, dict[str, Any] | None]:
    if answer["error"] is not None:
        return Rung(title, tuple(codes), "raised", answer["error"]["message"]), None
    result = answer["result"]
    error = result["error"]
    if error is not None:
        message = f"{error['type']}: {error['message']}"
        return Rung(title, tuple(codes), "raised", message, error.get("place")), error
    return rung_of(title, codes, result["modes"]), None


def rung_of(title: str, codes: Sequence[str], tallies: Sequence[Tally]) -> Rung:
    """A rung of a tree that ran to the end."""
    accepted = {tally["mode"]: round(mean_length(tally) or 0.0, 2) for tally in tallies}
    same, run = sum(t["same"] for t in tallies), sum(t["run"] for t in tallies)
    lossless = 0 < same == run and not any(t["features"] or t["draft_cache"] for t in tallies)
    lengths = ", ".join(f"{mode} {length:.2f}" for mode, length in accepted.items())
    message = f"runs; {same} of {run} texts are those of plain decoding; accepted length (oracle draft): {lengths}"
    status = "lossless" if lossless else "wrong"
    return Rung(title, tuple(codes), status, message, accepted=accepted, same=f"{same}/{run}")


def _rule_for(error: dict[str, Any], whole: PatchPlan, chosen: Sequence[str]) -> str | None:
    """The rule that the message calls for; else the one whose fix is nearest to the failing line."""
    place = error.get("place")
    left = [fix for fix in whole.fixes if fix.code not in chosen]
    if not left:
        return None
    told = _by_words(error, [fix.code for fix in left])
    if told is not None or not place:
        return told or left[0].code
    here = [fix for fix in left if fix.location.path == place["file"] and fix.location.line is not None]
    here.sort(key=lambda fix: abs((fix.location.line or 0) - place["line"]))
    return here[0].code if here else left[0].code


def _by_words(error: dict[str, Any], left: Sequence[str]) -> str | None:
    """Some messages tell more than their place: a cache that was made wrongly raises inside the library's forward."""
    text = f"{error['type']} {error['message']}"
    words = (
        *MISSING,
        ("CF201", ("list index out of range", "has_previous_state", "LinearAttention")),
        ("CF203", ("crop",)),
    )
    return next((code for code, hints in words if code in left and any(hint in text for hint in hints)), None)
