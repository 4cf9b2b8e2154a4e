"""Measurements made by hand, for tests of what is said about them."""

from __future__ import annotations

import math
import random
from typing import Any

from compatfix.validate.tally import SHAPES, new_tally


def tally(mode: str, profile: str = "oracle", **changes: Any) -> dict[str, Any]:
    made = new_tally(mode, profile, 24, 64)
    made.update(
        run=24, same=24, tokens=24 * 64, features_checked=24, lengths_compared=24, forwards=400, tokens_planned=24 * 64
    )
    made["accepted"] = {"full": 1, "partial": 9, "zero": 3}
    made["drafts_checked"] = 8
    made["shapes"] = dict.fromkeys(SHAPES, 2) if mode.startswith("tree") else made["shapes"]
    return {**made, **changes}


def refusal(message: str, start_up: bool = False) -> dict[str, Any]:
    error = {"type": "RuntimeRefusal", "message": message, "place": None}
    return {**error, "refused": True, "start_up": start_up}


def weights_row(mode: str, **changes: Any) -> dict[str, Any]:
    row = {"mode": mode, "run": 8, "same": 8, "differences": [], "error": None, "checks": checks()}
    return {**row, "accepted_length": 3.2, "forwards_per_token": 0.3, **changes}


def weights_result(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    result = {"modes": list(rows), "surplus": [], "prompts": 8, "dtype": "bfloat16", "noise": 0.25, "device": "cpu"}
    result |= {"attention": "sdpa", "functions": {}}
    return {**result, "faults": [planted(f"fault {i}") for i in range(4)], **changes}


def checks(**why: str | None) -> dict[str, Any]:
    """What was compared beside tokens, all within rounding but what `why` names."""
    noise = {"count": 64, "mean": 0.1, "largest": 0.25}
    return {
        name: {"count": 64, "mean": 0.1, "largest": 0.2, "noise": noise, "unit": 0.1, "why": why.get(name)}
        for name in ("logits", "features", "draft")
    }


def planted(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "what": name, "mode": "tree-16", "applicable": True, "caught": True, **changes}


def differing(*behind: float, kind: str = "rounding") -> dict[str, Any]:
    differences = [
        {"prompt": i, "index": 5, "got": 1, "expected": 2, "margin": 0.01, "behind": by, "kind": kind}
        for i, by in enumerate(behind)
    ]
    return {"same": 8 - len(behind), "differences": differences}


def timed_raw(
    factors: dict[str, float],
    *,
    library: float = 1.0,
    prompts: int = 12,
    spread: float = 0.01,
    parameters: int = 200_000_000,
    device_kind: str = "cpu",
    planned: int = 2,
    seed: int = 7,
) -> dict[str, Any]:
    """What `measure.run_measure` returns: `factors` say how many times faster than plain decoding a mode is, `spread`
    how far its prompts lie apart (as a log)."""
    draw = random.Random(seed)
    names = {"plain": 1.0, "plain again": 1.0, **factors, "library": library}
    effects = {(mode, prompt): draw.gauss(0, spread) for mode in names for prompt in range(prompts)}
    runs = [
        {
            "mode": mode,
            "prompt": prompt,
            "repetition": repetition,
            "prefill_seconds": 0.01 * (1 + prompt) * math.exp(draw.gauss(0, 0.01)),
            "decode_seconds": 0.64 * (1 + prompt) / factor * math.exp(effects[mode, prompt] + draw.gauss(0, 0.002)),
            "tokens": 64,
            "stage_seconds": {"draft": 1.0, "verify": 3.0} if mode in factors else {},
        }
        for repetition in range(2)
        for prompt in range(prompts)
        for mode, factor in names.items()
    ]
    counted = []
    for mode in names:
        if mode != "plain again":
            lengths = [2, 3, 4] if mode in factors else []
            counts = {"tokens": 64, "rounds": 22, "target_forwards": 22, "draft_forwards": 22, "lengths": lengths}
            reads = {"reads_per_round": 2.0, "read_places": {"ddtree.py:7": 44}, "peak_bytes": None}
            counted.append({"mode": mode, **counts, **reads})
    return {
        "device": device_kind,
        "device_kind": device_kind,
        "threads": 2,
        "dtype": "bfloat16",
        "target": {"parameters": parameters, "bytes": 400},
        "draft": {"parameters": 50, "bytes": 100},
        "head_bytes": 20,
        "prompts": prompts,
        "prompt_tokens": [5] * prompts,
        "tokens": 64,
        "planned": planned,
        "repetitions": 2,
        "warm_ups": 1,
        "sampler": None,
        "stop_tokens": [0],
        "counted": counted,
        "runs": runs,
        "errors": {},
    }
