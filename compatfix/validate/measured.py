"""From timed runs to the section of the report: rows with intervals, the noise floor, warnings. Pure, torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from compatfix.validate import intervals
from compatfix.validate.estimate import estimate
from compatfix.validate.intervals import Ratio, Times, difference, floor_of, prompts_enough, quartiles, ratio
from compatfix.validate.recommend import recommend
from compatfix.validate.tally import histogram, per_position

PLAIN, AGAIN, LIBRARY = "plain", "plain again", "library"
ROLES = {PLAIN: "baseline", AGAIN: "control", LIBRARY: "reference"}
# Below it a forward costs what its launches cost, on any device: the weights of 0.1 B parameters in bf16 are read in a
# tenth of a millisecond, the kernels of a few dozen layers are not started in a few. What such a target says of speed
# does not carry over to the targets that people speculate for.
TINY = 100_000_000
# All comparisons of a run together are right this often.
TOGETHER = 0.95


def summarise(raw: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The section "measured": `raw` is what `measure.run_measure` returned."""
    decoding, prefilling = _times(raw["runs"], _per_token), _times(raw["runs"], lambda run: run["prefill_seconds"])
    names = [row["mode"] for row in raw["counted"] if row["mode"] in decoding and row["mode"] not in ROLES]
    # Each mode against the baseline, and each against the one before it.
    level = 1 - (1 - TOGETHER) / max(1, 2 * len(names) - 1)

    def compared(slow: str, fast: str, times: Mapping[str, Times] = decoding) -> Ratio | None:
        return ratio(times.get(slow, {}), times.get(fast, {}), level, seed)

    again = compared(PLAIN, AGAIN)
    floor, prefill_floor = floor_of(again), floor_of(compared(PLAIN, AGAIN, prefilling))
    library = compared(PLAIN, LIBRARY)
    # Speed-ups against a baseline that is slow itself would be overstated.
    baseline = LIBRARY if difference(library, floor) == "faster" else PLAIN
    rows = []
    for counted in _counted(raw):
        name = counted["mode"]
        against = PLAIN if name in ROLES else baseline
        row = {**counted, "role": ROLES.get(name, "mode"), "against": against}
        row |= _told("", compared(against, name), floor) | _told(
            "prefill_", compared(PLAIN, name, prefilling), prefill_floor
        )
        rows.append({**row, **_spread(raw["runs"], counted)})
    found = [compared(baseline, name) for name in names]
    tiny = raw["target"]["parameters"] < TINY
    section = {
        **{key: value for key, value in raw.items() if key not in ("counted", "runs", "errors")},
        "label": "real draft",
        "tiny": tiny,
        "tiny_below": TINY,
        "baseline": baseline,
        "level": level,
        "floor": None if floor is None else math.exp(floor),
        "prompts_enough": max((n for n in map(prompts_enough, found) if n is not None), default=None),
        "rows": rows,
    }
    section["recommendation"] = recommend(names, baseline, compared, floor, _accelerated_where(raw))
    section["estimate"] = estimate(section) if tiny or raw["device_kind"] in ("cpu", "mps") else None
    section["warnings"] = list(_warnings(section, library, floor))
    note = "seconds of single runs, for those who want to check the statistics"
    section["runs"] = {
        "note": note + ("; of a target this small they say nothing about another" if tiny else ""),
        "all": raw["runs"],
    }
    return section


def _per_token(run: Mapping[str, Any]) -> float | None:
    return run["decode_seconds"] / run["tokens"] if run["tokens"] and run["prefill_seconds"] is not None else None


def _times(runs: Sequence[Mapping[str, Any]], of: Any) -> dict[str, dict[int, list[float | None]]]:
    """By mode and prompt; a repetition that is missing keeps its place, since repetitions are compared side by side."""
    repetitions = max((run["repetition"] for run in runs), default=-1) + 1
    found: dict[str, dict[int, list[float | None]]] = {}
    for run in runs:
        line = found.setdefault(run["mode"], {}).setdefault(run["prompt"], [None] * repetitions)
        line[run["repetition"]] = of(run)
    return found


def _counted(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per mode that was counted, the control behind the baseline, and the modes that raised."""
    rows: list[dict[str, Any]] = []
    timed = {run["mode"] for run in raw["runs"]}
    for counted in raw["counted"]:
        rows.append(_counts(counted, raw["errors"].get(counted["mode"])))
        if counted["mode"] == PLAIN and AGAIN in timed:
            rows.append(_counts({**_nothing(AGAIN)}, raw["errors"].get(AGAIN)))
    seen = {row["mode"] for row in rows}
    rows += [_counts(_nothing(mode), error) for mode, error in raw["errors"].items() if mode not in seen]
    return rows


def _nothing(mode: str) -> dict[str, Any]:
    counts = dict.fromkeys(("tokens", "rounds", "target_forwards", "draft_forwards"), 0)
    return {"mode": mode, **counts, "lengths": [], "reads_per_round": None, "read_places": {}, "peak_bytes": None}


def _counts(counted: Mapping[str, Any], error: Mapping[str, Any] | None) -> dict[str, Any]:
    tokens, rounds, lengths = counted["tokens"], counted["rounds"], counted["lengths"]
    return {
        "mode": counted["mode"],
        "tokens": tokens,
        "rounds": rounds,
        "accepted_length": fmean(lengths) if lengths else None,
        "tokens_per_round": tokens / rounds if rounds else None,
        "histogram": histogram(lengths),
        "per_position": per_position(lengths) if lengths else [],
        "forwards_per_token": counted["target_forwards"] / tokens if tokens else None,
        "draft_forwards_per_token": counted["draft_forwards"] / tokens if tokens else None,
        "reads_per_round": counted["reads_per_round"],
        "read_places": counted["read_places"],
        "peak_bytes": counted["peak_bytes"],
        "error": error and {key: error.get(key) for key in ("type", "message", "place")},
    }


def _told(prefix: str, found: Ratio | None, floor: float | None) -> dict[str, Any]:
    return {
        f"{prefix}speed_up": found and found.value,
        f"{prefix}low": found and found.low,
        f"{prefix}high": found and found.high,
        f"{prefix}difference": None if found is None else difference(found, floor),
    }


def _spread(runs: Sequence[Mapping[str, Any]], counted: Mapping[str, Any]) -> dict[str, Any]:
    """Quartiles over the prompts (of each the median of its repetitions), and the stages."""
    own = [run for run in runs if run["mode"] == counted["mode"]]
    per_token = _by_prompt(own, _per_token)
    prefill = _by_prompt(own, lambda run: run["prefill_seconds"])
    stages: dict[str, float] = {}
    for run in own:
        for stage, seconds in run["stage_seconds"].items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    return {
        "seconds_per_token": list(quartiles(per_token)) if per_token else None,
        "prefill_seconds": list(quartiles(prefill)) if prefill else None,
        "stage_seconds": stages,
    }


def _by_prompt(runs: Sequence[Mapping[str, Any]], of: Any) -> list[float]:
    lines: dict[int, list[float]] = {}
    for run in runs:
        value = of(run)
        if value is not None:
            lines.setdefault(run["prompt"], []).append(value)
    return [median(line) for line in lines.values()]


def _accelerated_where(raw: Mapping[str, Any]) -> str:
    sampler = f", {raw['sampler']}" if raw["sampler"] else ""
    return f"on {raw['device']} in {raw['dtype']}{sampler}"


def _warnings(section: Mapping[str, Any], library: Ratio | None, floor: float | None) -> Any:
    prompts, enough = section["prompts"], section["prompts_enough"]
    if prompts < intervals.FEWEST_PROMPTS:
        yield f"{prompts} prompts are too few for an interval to be trusted: give {intervals.FEWEST_PROMPTS} or more"
    if enough is not None and enough > prompts:
        yield (
            f"{prompts} prompts cannot tell {intervals.WORTH_TELLING:.0%} in every mode: about {enough} of this spread "
            "could"
        )
    if section["repetitions"] < section["planned"]:
        yield f"{section['repetitions']} of {section['planned']} repetitions were run: the time limit was near"
    if section["baseline"] == LIBRARY and library is not None:
        yield (
            f"the tree's plain decoding is slower than the library's own loop ({library.value:.2f}×): speed-ups are "
            "against the library's"
        )
    if floor is None:
        yield "the noise floor is unknown (plain decoding has no interval against itself): no difference counts"
