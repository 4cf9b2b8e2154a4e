"""What the comparisons on a rounding model come to, beside its tokens: findings, and what was not compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.model import Finding

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
