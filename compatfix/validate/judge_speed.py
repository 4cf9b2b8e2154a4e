"""Verdicts of the scopes draft and speed, from what was measured on real weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compatfix.model import Finding, ScopeVerdict
from compatfix.validate.intervals import WORTH_TELLING

# An accepted length of 1 means that no drafted token was ever right. Less than this is not worth a draft.
LEAST_ACCEPTED = 1.2
CRITERION = f"{LEAST_ACCEPTED}: one drafted token accepted in five rounds"
ELSEWHERE = "gate --on weights with the checkpoint that will be used, on the device that will be used"


def judge_draft(rows: Sequence[Mapping[str, Any]]) -> ScopeVerdict:
    """By accepted length; `rows` are those of "measured", or of "weights" where nothing was timed."""
    known = [
        row for row in rows if row["mode"] != "plain" and row["accepted_length"] and row.get("role", "mode") == "mode"
    ]
    if not known:
        return ScopeVerdict("draft", "undecided", "no round was drafted")
    best = max(float(row["accepted_length"]) for row in known)
    text = ", ".join(f"{row['mode']} {row['accepted_length']:.2f}" for row in known)
    reason = f"accepted length on real weights: {text}; the best is "
    if best < LEAST_ACCEPTED:
        return ScopeVerdict("draft", "failed", f"{reason}below {CRITERION}", "check the pairing: inspect --draft")
    return ScopeVerdict("draft", "passed", f"{reason}at least {CRITERION}")


def judge_speed(measured: Mapping[str, Any] | None, failure: Finding | None, why_not: str | None) -> ScopeVerdict:
    """Passed where a mode is faster than plain decoding by more than noise. `why_not` is why nothing was timed."""
    if failure is not None:
        reason = f"the timing has no result: {failure.message}"
        return ScopeVerdict("speed", "unmeasured", reason, "fewer --repetitions, or a longer --time-limit")
    if measured is None:
        return ScopeVerdict("speed", "unmeasured", why_not or "nothing was timed", "gate with --repetitions 3")
    if measured["tiny"]:
        size = measured["target"]["parameters"] / 1e6
        reason = (
            f"a target of {size:.1f} M parameters says nothing about speed (fewer than "
            f"{measured['tiny_below'] / 1e6:.0f} M); its ratios on {measured['device']} are in the report"
        )
        return ScopeVerdict("speed", "unmeasured", reason, ELSEWHERE)
    modes = [row for row in measured["rows"] if row["role"] == "mode" and row["speed_up"]]
    reason = f"recommended: {measured['recommendation']['sentence']}"
    if not modes:
        return ScopeVerdict("speed", "undecided", "no mode that drafts could be timed beside plain decoding")
    if any(row["difference"] == "faster" for row in modes):
        return ScopeVerdict("speed", "passed", reason)
    if all(row["high"] is not None and row["high"] < 1 + WORTH_TELLING for row in modes):
        return ScopeVerdict("speed", "failed", reason)
    return ScopeVerdict("speed", "undecided", reason, "more prompts (--prompt-file), or a quieter machine")


def with_measured(
    scopes: Sequence[ScopeVerdict], measured: Mapping[str, Any] | None, failure: Finding | None, why_not: str | None
) -> tuple[tuple[ScopeVerdict, ...], tuple[Finding, ...]]:
    """Puts what the timing says in the place of draft and speed; the other scopes stay."""
    found = {"speed": judge_speed(measured, failure, why_not)}
    if measured is not None and measured["rows"]:
        found["draft"] = judge_draft(measured["rows"])
    settled = tuple(found.get(scope.scope, scope) for scope in scopes)
    failed = [scope for scope in settled if scope.scope in ("draft", "speed") and scope.status == "failed"]
    return settled, tuple(Finding("CF990", "note", "measured", scope.reason) for scope in failed)
