"""Measurements made by hand, for tests of what is said about them."""

from __future__ import annotations

from typing import Any

from compatfix.validate.tally import new_tally


def tally(mode: str, profile: str = "oracle", **changes: Any) -> dict[str, Any]:
    made = new_tally(mode, profile, 24, 64)
    made.update(run=24, same=24, tokens=24 * 64, features_checked=24, forwards=400, tokens_planned=24 * 64)
    made["accepted"] = {"full": 1, "partial": 9, "zero": 3}
    return {**made, **changes}


def refusal(message: str, start_up: bool = False) -> dict[str, Any]:
    error = {"type": "RuntimeRefusal", "message": message, "place": None}
    return {**error, "refused": True, "start_up": start_up}


def weights_row(mode: str, **changes: Any) -> dict[str, Any]:
    row = {"mode": mode, "run": 8, "same": 8, "differences": [], "error": None}
    return {**row, "accepted_length": 3.2, "forwards_per_token": 0.3, "speed_up": 2.0, **changes}


def weights_result(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    result = {"modes": list(rows), "surplus": [], "prompts": 8, "dtype": "bfloat16", "noise": 0.25, "device": "cpu"}
    return {**result, **changes}


def differing(*behind: float, kind: str = "rounding") -> dict[str, Any]:
    differences = [
        {"prompt": i, "index": 5, "got": 1, "expected": 2, "margin": 0.01, "behind": by, "kind": kind}
        for i, by in enumerate(behind)
    ]
    return {"same": 8 - len(behind), "differences": differences}
