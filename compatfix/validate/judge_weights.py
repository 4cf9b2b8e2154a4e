"""Verdicts of the scopes that a tiny model cannot speak for: kernels, weights, draft, speed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.model import Finding, ScopeVerdict, unmeasured

# An accepted length of 1 means that no drafted token was ever right.
WORTHLESS = 1.05


def judge_weights(
    on: str, has_draft: bool, answer: Mapping[str, Any] | None, failure: Finding | None
) -> tuple[tuple[ScopeVerdict, ...], tuple[Finding, ...]]:
    """Scopes kernels, weights, draft, speed, in this order."""
    kernels = unmeasured(
        "kernels", "attention kernels and fast paths of the machine that will run it", "run the gate on that machine"
    )
    if on != "weights":
        step = "gate --on weights, with the checkpoint's directory as target"
        draft = "what the draft achieves" if has_draft else "no draft was given"
        return (
            kernels,
            unmeasured("weights", "no weights were loaded: the model is tiny and random", step),
            unmeasured("draft", draft, f"{step} and --draft"),
            unmeasured("speed", "a tiny model says nothing about speed", f"{step}, on the device that will be used"),
        ), ()
    if failure is not None or answer is None or answer["error"] is not None:
        finding = failure or _as_finding(answer)
        status = "failed" if finding is not None else "unmeasured"
        reason = finding.message if finding is not None else "not run: the code is wrong on the tiny model"
        step = "mend what scope code names first"
        scopes = tuple(ScopeVerdict(scope, "unmeasured", reason, step) for scope in ("draft", "speed"))
        weights = ScopeVerdict("weights", "failed" if status == "failed" else "unmeasured", reason, step)
        return (kernels, weights, *scopes), (() if finding is None else (finding,))
    return _measured(kernels, answer["result"])


def _as_finding(answer: Mapping[str, Any] | None) -> Finding | None:
    if answer is None:
        return None
    error = answer["error"]
    return Finding(error["code"], "error", "measured", error["message"], details=error["detail"])


def _measured(kernels: ScopeVerdict, result: Mapping[str, Any]) -> tuple[tuple[ScopeVerdict, ...], tuple[Finding, ...]]:
    findings: list[Finding] = []
    rows = result["modes"]
    for row in rows:
        bad = [d for d in row["differences"] if d["kind"] == "corruption"]
        if row["error"] is not None:
            error = row["error"]
            code = "CF911" if error.get("refused") else "CF910"
            text = f"{row['mode']} on real weights: {error['type']}: {error['message']}"
            findings.append(Finding(code, "error", "measured", text, details=error))
        elif bad:
            first = bad[0]
            text = (
                f"{row['mode']} on real weights: token {first['index']} of prompt {first['prompt']} is {first['got']}, "
                f"plain decoding gives {first['expected']} (margin {_number(first['margin'])}, "
                f"noise {result['noise']:.2g})"
            )
            findings.append(Finding("CF901", "error", "measured", text, details=first))
    if result["surplus"]:
        text = f"{len(result['surplus'])} keys of the checkpoint are not used, among them {result['surplus'][0]}"
        findings.append(Finding("CF912", "note", "measured", text, details={"keys": result["surplus"][:20]}))
    errors = [finding for finding in findings if finding.level == "error"]
    text = f"loads completely; text equals plain decoding on {result['prompts']} prompts ({result['dtype']})"
    weights = ScopeVerdict("weights", "failed" if errors else "passed", errors[0].message if errors else text)
    speculative = [row for row in rows if row["mode"] != "plain" and row["accepted_length"]]
    draft, speed = _draft(speculative), _speed(speculative, result)
    if speed.status == "failed":
        findings.append(Finding("CF990", "note", "measured", speed.reason))
    return (kernels, weights, draft, speed), tuple(findings)


def _draft(rows: list[Mapping[str, Any]]) -> ScopeVerdict:
    if not rows:
        return ScopeVerdict("draft", "undecided", "no round was drafted")
    text = ", ".join(f"{row['mode']} {row['accepted_length']:.2f}" for row in rows)
    good = max(row["accepted_length"] for row in rows) > WORTHLESS
    reason = f"accepted length on real weights: {text}"
    step = None if good else "check the pairing: inspect --draft"
    return ScopeVerdict("draft", "passed" if good else "failed", reason, step)


def _speed(rows: list[Mapping[str, Any]], result: Mapping[str, Any]) -> ScopeVerdict:
    known = [row for row in rows if row["speed_up"]]
    if not known:
        return ScopeVerdict("speed", "undecided", "no baseline was measured")
    best = max(known, key=lambda row: float(row["speed_up"]))
    text = ", ".join(f"{row['mode']} {row['speed_up']:.2f}×" for row in known)
    reason = f"against plain decoding on {result['device']} (medians): {text}; fastest: {best['mode']}"
    return ScopeVerdict("speed", "passed" if best["speed_up"] > 1 else "failed", reason)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
