"""What the comparisons on a rounding model come to, beside its tokens: findings, and what was not compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.model import Finding
from compatfix.validate.raised import raised

# Planted on the model in hand; fewer show too little.
FEWEST_FAULTS = 4
# check -> (code, what was compared in words)
CHECKS = {
    "logits": ("CF909", "logits of drafted nodes"),
    "features": ("CF916", "the context handed to the draft"),
    "draft": ("CF916", "the draft's output with its cache"),
}


def corrupted_checks(where: str, row: Mapping[str, Any]) -> list[Finding]:
    """Of one mode: comparisons that rounding does not explain."""
    found = []
    for name, check in row.get("checks", {}).items():
        code, words = CHECKS[name]
        if check["why"]:
            text = f"{where}: {words} differ from plain decoding beyond rounding: {check['why']}"
            found.append(Finding(code, "error", "measured", text, details={"check": name, **check}))
    return found


def unchecked(where: str, section: Mapping[str, Any] | None) -> list[str]:
    """What was planned and not compared, in words: a mode that ran fewer prompts, a comparison without a value."""
    missing = []
    for row in (section or {}).get("modes", ()):
        assert section is not None
        if row["error"] is None and row["run"] != section["prompts"]:
            missing.append(f"{row['mode']} in {where}: {row['run']} of {section['prompts']} prompts run")
        if row["error"] is None and row["mode"] != "plain":
            for name, check in row.get("checks", {}).items():
                if not check["count"] and not check["why"]:
                    missing.append(f"{row['mode']} in {where}: {CHECKS[name][1]} could not be compared")
    return missing


def in_own_dtype(where: str, result: Mapping[str, Any]) -> list[Finding]:
    """Of a model in its own dtype: modes that raised, texts and other comparisons that rounding does not explain."""
    findings: list[Finding] = []
    for row in result["modes"]:
        bad = [d for d in row["differences"] if d["kind"] == "corruption"]
        if row["error"] is not None:
            findings.append(raised(f"{row['mode']} on {where}", row["error"]))
        elif bad:
            first = bad[0]
            text = (
                f"{row['mode']} on {where}: token {first['index']} of prompt {first['prompt']} is {first['got']}, "
                f"plain decoding gives {first['expected']} (margin {_number(first['margin'])}, "
                f"noise {result['noise']:.2g})"
            )
            findings.append(Finding("CF901", "error", "measured", text, details=first))
        findings += corrupted_checks(f"{row['mode']} on {where}", row)
    return findings


def open_in_own_dtype(where: str, result: Mapping[str, Any]) -> list[str]:
    """What keeps the same from being called right: comparisons not made, planted faults not seen, too few of them."""
    planted = [fault for fault in result["faults"] if fault["applicable"]]
    missing = unchecked(where, result)
    missing += [
        f"planted fault not seen on {where}: {fault['name']} ({fault['what']})"
        for fault in planted
        if not fault["caught"]
    ]
    if len(planted) < FEWEST_FAULTS:
        missing.append(f"only {len(planted)} faults could be planted on {where}, {FEWEST_FAULTS} are needed")
    return missing


def texts_in_own_dtype(result: Mapping[str, Any]) -> str:
    """How many texts are those of plain decoding in the worst mode, and how far the others are off."""
    rows = result["modes"]
    worst = min(rows, key=lambda row: int(row["same"]))
    same, run, dtype = worst["same"], worst["run"], result["dtype"]
    if same == run:
        return f"{same} of {run} texts equal plain decoding in every mode ({dtype})"
    largest = max(float(difference["behind"]) for row in rows for difference in row["differences"])
    return (
        f"at least {same} of {run} texts equal plain decoding in every mode ({dtype}); in {worst['mode']} {run - same} "
        f"differ by rounding only (largest margin {largest:.3g} in any mode, noise {result['noise']:.3g})"
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
