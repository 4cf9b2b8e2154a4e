"""Verdicts of the scopes that only real weights can speak for: weights, draft, speed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.codes import CODES
from compatfix.model import Finding, Scope, ScopeVerdict, unmeasured
from compatfix.validate.judge_noise import in_own_dtype, open_in_own_dtype, texts_in_own_dtype
from compatfix.validate.judge_speed import judge_draft, judge_speed

_NOT_LOADED = {
    "tiny": "no weights were loaded: the model is tiny and random",
    "slice": "the checkpoint was not loaded: a few of its layers ran",
}
OTHERS: tuple[Scope, ...] = ("draft", "speed")


def judge_weights(
    on: str, has_draft: bool, answer: Mapping[str, Any] | None, failure: Finding | None
) -> tuple[tuple[ScopeVerdict, ...], tuple[Finding, ...]]:
    """Scopes weights, draft, speed, in this order."""
    if on != "weights":
        step = "gate --on weights, with the checkpoint's directory as target"
        draft = "what the draft achieves" if has_draft else "no draft was given"
        return (
            unmeasured("weights", _NOT_LOADED[on], step),
            unmeasured("draft", draft, f"{step} and --draft"),
            unmeasured(
                "speed",
                f"a {'tiny model' if on == 'tiny' else on} says nothing about speed",
                f"{step}, on the device that will be used",
            ),
        ), ()
    finding = failure or _as_finding(answer)
    if finding is not None:
        return _not_run(finding), (finding,)
    if answer is None:
        reason, step = "not run: the code is wrong on the tiny model", "mend what scope code names first"
        scopes: tuple[Scope, ...] = ("weights", *OTHERS)
        return tuple(ScopeVerdict(scope, "unmeasured", reason, step) for scope in scopes), ()
    return _measured(answer["result"])


def _not_run(finding: Finding) -> tuple[ScopeVerdict, ...]:
    """Nothing was generated: the weights are to blame, and nothing is known of draft and speed."""
    step = finding.details.get("hint") or finding.fix or CODES[finding.code].do or None
    why = "the checkpoint did not load" if finding.code == "CF912" else "the run on real weights has no result"
    others = (ScopeVerdict(scope, "unmeasured", why, step) for scope in OTHERS)
    return ScopeVerdict("weights", "failed", finding.message, step), *others


def _as_finding(answer: Mapping[str, Any] | None) -> Finding | None:
    error = answer["error"] if answer is not None else None
    if error is None:
        return None
    return Finding(error["code"], "error", "measured", error["message"], details=error["detail"])


def _measured(result: Mapping[str, Any]) -> tuple[tuple[ScopeVerdict, ...], tuple[Finding, ...]]:
    rows = result["modes"]
    findings = in_own_dtype("real weights", result)
    if result["surplus"]:
        text = f"{len(result['surplus'])} keys of the checkpoint are not used, among them {result['surplus'][0]}"
        findings.append(Finding("CF912", "note", "measured", text, details={"keys": result["surplus"][:20]}))
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        step = errors[0].fix or CODES[errors[0].code].do or None
        weights = ScopeVerdict("weights", "failed", errors[0].message, step)
    elif missing := open_in_own_dtype("real weights", result):
        findings += [Finding("CF903", "note", "measured", text) for text in missing]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        weights = ScopeVerdict("weights", "undecided", missing[0] + more)
    else:
        caught = sum(bool(fault["caught"]) for fault in result["faults"])
        planted = f"; {caught} planted faults caught" if caught else ""
        weights = ScopeVerdict("weights", "passed", f"loads completely; {texts_in_own_dtype(result)}{planted}")
    # What is timed afterwards takes the place of both (judge_speed.with_measured).
    return (weights, judge_draft(rows), judge_speed(None, None, None)), tuple(findings)
