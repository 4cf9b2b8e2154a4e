"""One mode's numbers, added up run by run in the worker and shard by shard in the front. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# As many differing prompts are enough to know that a mode is wrong; the rest would only cost time.
MAX_DIFFERENCES = 3

Tally = dict[str, Any]

# Trees that were verified: with siblings, as large as the budget, as deep as the block; and paths that were accepted:
# off the likeliest child, as deep as that.
SHAPES = ("siblings", "whole budget", "whole depth", "path off the first child", "path of whole depth")


def new_tally(mode: str, profile: str, planned: int, tokens: int) -> Tally:
    return {
        "mode": mode,
        "profile": profile,
        "planned": planned,
        "run": 0,
        "same": 0,
        "tokens_planned": planned * tokens,
        "tokens": 0,
        "rounds": 0,
        "forwards": 0,
        "lost": 0,
        "recomputed": 0,
        "seconds": 0.0,
        "histogram": {},
        "per_position": [],
        "accepted": {"full": 0, "partial": 0, "zero": 0},
        "shapes": dict.fromkeys(SHAPES, 0),
        "stage_times": {},
        "nodes": {"largest": 0.0, "nodes": 0, "wrong_argmax": 0, "bad": None},
        "features_checked": 0,
        "features": [],
        "drafts_checked": 0,
        "draft_cache": [],
        "prompts": [],
        "changed": [],
        "claims": [],
        "lengths_compared": 0,
        "fields": [],
        "rounds_followed": 0,
        "rounds_short": 0,
        "short": [],
        "noise": [],
        "differences": [],
        "error": None,
    }


def stopped(tally: Tally) -> bool:
    """Whether the mode is known to be wrong, so that more runs would say nothing new."""
    return tally["error"] is not None or len(tally["differences"]) >= MAX_DIFFERENCES


def add_lengths(tally: Tally, lengths: Iterable[int]) -> None:
    """Counts rounds by the number of tokens committed; position k counts the rounds that accepted k drafted tokens."""
    for length in lengths:
        tally["rounds"] += 1
        key = str(length)
        tally["histogram"][key] = tally["histogram"].get(key, 0) + 1
        positions = tally["per_position"]
        positions.extend([0] * (length - 1 - len(positions)))
        for k in range(length - 1):
            positions[k] += 1


def add_times(tally: Tally, times: Mapping[str, float]) -> None:
    for name, seconds in times.items():
        tally["stage_times"][name] = tally["stage_times"].get(name, 0.0) + seconds


def merge(tallies: Iterable[Tally]) -> list[Tally]:
    """Adds up tallies of the same mode and profile, in the order of first appearance."""
    merged: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        key = (tally["mode"], tally["profile"])
        if key not in merged:
            merged[key] = new_tally(*key, 0, 0)
        _add(merged[key], tally)
    return list(merged.values())


def _add(total: Tally, part: Tally) -> None:
    for name, value in part.items():
        if name in ("mode", "profile"):
            continue
        if name == "error":
            total[name] = total[name] or value
        elif name == "nodes":
            _add_nodes(total[name], value)
        elif name == "per_position":
            total[name].extend([0] * (len(value) - len(total[name])))
            for k, count in enumerate(value):
                total[name][k] += count
        elif isinstance(value, Mapping):
            for key, number in value.items():
                total[name][key] = total[name].get(key, 0) + number
        else:
            total[name] += value


def _add_nodes(total: dict[str, Any], part: Mapping[str, Any]) -> None:
    total["largest"] = max(total["largest"], part["largest"])
    total["nodes"] += part["nodes"]
    total["wrong_argmax"] += part["wrong_argmax"]
    total["bad"] = total["bad"] or part["bad"]


def mean_length(tally: Tally) -> float | None:
    """Mean number of tokens committed per round."""
    count = sum(tally["histogram"].values())
    return sum(int(k) * n for k, n in tally["histogram"].items()) / count if count else None


def histogram(lengths: Iterable[int]) -> dict[str, int]:
    """Rounds by the number of tokens committed, shortest first."""
    return {str(length): count for length, count in sorted(Counter(lengths).items())}


def per_position(lengths: Sequence[int]) -> list[float]:
    """The share of rounds that accepted the drafted token at each position of the block, nearest first."""
    longest = max(lengths, default=1)
    return [round(sum(length > position for length in lengths) / len(lengths), 4) for position in range(1, longest)]
