"""What a device that is bound by reading weights might make of the accepted lengths measured here. An estimate, and
marked as one wherever it goes; no scope is decided by it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Where reading weights takes as long as the arithmetic of so many tokens depends on the device; on those of data
# centres it is some hundred tokens in bf16.
SURE_NODES = 128
ASSUMED = (
    "a round costs one reading of the target's and of the draft's weights, plain decoding one of the target's",
    "verifying a block or a tree costs one forward of the target, the draft one forward a round",
    "attention, cache traffic, launches and the host's own work cost nothing",
    "every weight is read in every forward, which a mixture of experts does not do",
)


def estimate(section: Mapping[str, Any]) -> dict[str, Any] | None:
    """{"estimate": true, "draft_cost", "assumptions", "rows"}; None where nothing was accepted or sizes are unknown."""
    target = section["target"]["bytes"]
    if not target:
        return None
    draft = section["draft"]["bytes"] + section["head_bytes"]
    cost = draft / target
    rows = [
        {
            "mode": row["mode"],
            "accepted_length": row["accepted_length"],
            "speed_up": row["accepted_length"] / (1 + cost),
            "beyond": _nodes(row["mode"]) > SURE_NODES,
        }
        for row in section["rows"]
        if row["role"] == "mode" and row["accepted_length"]
    ]
    if not rows:
        return None
    breaks = f"trees of more than about {SURE_NODES} nodes may cost more than one reading of the weights"
    return {"estimate": True, "draft_cost": cost, "assumptions": list(ASSUMED), "breaks": breaks, "rows": rows}


def estimate_sentence(found: Mapping[str, Any]) -> str:
    told = ", ".join(f"{row['mode']} {row['speed_up']:.2f}×{' (beyond)' * row['beyond']}" for row in found["rows"])
    return (
        f"estimate, not measured: on a device bound by reading weights {told} (accepted length over 1 + "
        f"{found['draft_cost']:.2f}, the draft's bytes over the target's); assumes that a verification costs one "
        f"forward, and no attention or cache term; {found['breaks']}"
    )


def _nodes(mode: str) -> int:
    return int(mode.rpartition("-")[2]) if mode.startswith("tree-") else 0
