"""The short benchmark: plain, chain and trees side by side on the same prompts. Pure: made from the oracle's tallies.

Accepted lengths here are those of an oracle draft; they say what the code makes of a good draft, never what a draft is
worth. Times are those of a tiny model: shares of a round, never tokens per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compatfix.validate.tally import Tally, mean_length

LABEL = "oracle draft"


def benchmark(plain: Tally | None, modes: Sequence[Tally]) -> dict[str, Any]:
    """{"label", "rows"}: one row per mode, plain first; a mode that raised keeps its row, with what it raised."""
    tallies = [tally for tally in (plain, *modes) if tally is not None and (tally["run"] or tally["error"])]
    return {"label": LABEL, "rows": [_row(tally) for tally in tallies]}


def _row(tally: Tally) -> dict[str, Any]:
    rounds = sum(tally["histogram"].values())
    stages = tally["stage_times"]
    # Some trees list the parts of a stage beside it: "build_heap" is inside "build".
    whole = sum(s for name, s in stages.items() if name.split("_")[0] not in set(stages) - {name}) or 1.0
    return {
        "mode": tally["mode"],
        "prompts": tally["run"],
        "tokens": tally["tokens"],
        "rounds": rounds,
        "accepted_length": mean_length(tally) if rounds or tally["error"] else 1.0,
        "histogram": dict(sorted(tally["histogram"].items(), key=lambda item: int(item[0]))),
        "per_position": [round(count / rounds, 4) for count in tally["per_position"]] if rounds else [],
        "forwards": tally["forwards"],
        "forwards_per_token": tally["forwards"] / tally["tokens"] if tally["tokens"] else None,
        "error": tally["error"] and f"{tally['error']['type']}: {tally['error']['message']}",
        "stage_seconds": stages,
        "stage_shares": {name: seconds / whole for name, seconds in stages.items()},
    }
