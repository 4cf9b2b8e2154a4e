"""The verdict of scope kernels, from a slice of the real target or from the checkpoint itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.codes import CODES
from compatfix.model import Finding, Scope, ScopeVerdict, unmeasured
from compatfix.validate.judge_noise import in_own_dtype, open_in_own_dtype, texts_in_own_dtype

_SCOPE: Scope = "kernels"


def judge_kernels(
    on: str, slice_answer: Mapping[str, Any] | None, failure: Finding | None, weights: Mapping[str, Any] | None
) -> tuple[ScopeVerdict, tuple[Finding, ...]]:
    """`slice_answer` is the task's, `weights` the result on the checkpoint, whose findings scope weights has."""
    if on == "tiny":
        step = "gate --on slice, on the machine that will run it"
        return unmeasured(_SCOPE, "attention kernels and fast paths of the machine that will run it", step), ()
    if on == "weights":
        if weights is None:
            return unmeasured(_SCOPE, "nothing ran on the checkpoint", "see scope weights"), ()
        return _judged("real weights", weights, "the whole checkpoint")
    if failure is None and slice_answer is not None and slice_answer["error"] is not None:
        error = slice_answer["error"]
        failure = Finding(error["code"], "error", "measured", error["message"], details=error["detail"])
    if failure is not None:
        hint = failure.details.get("hint") or failure.fix or CODES[failure.code].do or None
        return ScopeVerdict(_SCOPE, "unmeasured", failure.message, hint), (failure,)
    if slice_answer is None:
        return unmeasured(
            _SCOPE, "not run: the code is wrong on the tiny model", "mend what scope code names first"
        ), ()
    result = slice_answer["result"]
    what = f"{len(result['layers'])} of {result['depth']} layers at real width, values {result['values']}"
    what += "".join(f", {name} shortened from {size}" for name, size in result["windows"].items())
    return _judged("the slice", result, what)


def _judged(where: str, result: Mapping[str, Any], what: str) -> tuple[ScopeVerdict, tuple[Finding, ...]]:
    wrong = in_own_dtype(where, result)
    if wrong:
        step = wrong[0].fix or CODES[wrong[0].code].do or None
        return ScopeVerdict(_SCOPE, "failed", wrong[0].message, step), tuple(wrong)
    missing = open_in_own_dtype(where, result)
    notes = tuple(Finding("CF903", "note", "measured", text) for text in missing)
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        return ScopeVerdict(_SCOPE, "undecided", missing[0] + more), notes
    caught = sum(bool(fault["caught"]) for fault in result["faults"])
    text = f"{ran(result)}; {what}: {texts_in_own_dtype(result)}; {caught} planted faults caught"
    return ScopeVerdict(_SCOPE, "passed", text), notes


def ran(result: Mapping[str, Any]) -> str:
    """What a verdict about kernels is about: the device, attention, and what ran for each package of kernels."""
    told = "".join(f"; for {package}: {what}" for package, what in sorted(result["functions"].items()))
    return f"{result['device']}, attention {result['attention']}{told}"
