"""What a page draws: each chart with the table of its numbers, only of what was measured, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compatfix.model import Report
from compatfix.report import svg
from compatfix.report.table import Table
from compatfix.report.timing import method

# Where a run had none of it, what would measure it.
WOULD_MEASURE = {
    "accepted length": "compatfix gate TREE --target MODEL, with code whose texts are right enough to run",
    "acceptance by position": "compatfix gate TREE --target MODEL: a tree with a chain or tree entry point",
    "time by stage": "a tree whose generate functions return stage_times",
    "cache by layer": "compatfix gate or inspect in an environment that can build a tiny model of the class",
    "margins": "texts that differ from plain decoding: none did in this run, or bf16 was not run",
    "speed": "compatfix gate TREE --target CHECKPOINT --draft DIR --on weights --repetitions 3",
    "real draft": "compatfix gate TREE --target CHECKPOINT --draft DIR --on weights",
}
KIND_NAMES = {
    "linear": "recurrent or convolution state, constant in size",
    "full": "keys and values of every token",
    "sliding": "keys and values of a window",
    "hybrid": "keys and values beside a state",
    "none": "nothing",
}
_TINTS = {"linear": "tint1", "full": "tint2", "sliding": "tint3", "hybrid": "tint4", "none": "tint5"}


@dataclass(frozen=True)
class Chart:
    """`name` is an anchor; `drawing` is an <svg> element; `table` holds every number that the drawing shows."""

    name: str
    title: str
    caption: str
    drawing: str
    table: Table


def charts(report: Report) -> list[Chart]:
    """Every chart that the report has numbers for, in reading order."""
    sections = report.sections
    found: list[Chart] = []
    # What was timed repeats what was compared, with stages that no watch was in.
    name = "measured" if "measured" in sections else "weights"
    if name in sections:
        found += _of_modes(name, sections[name])
    if "measured" in sections:
        found += _speed_ups(sections["measured"])
    if "benchmark" in sections:
        found += _of_modes("benchmark", sections["benchmark"])
    found += _layout(sections)
    for name in ("bf16", "slice", "weights", "losslessness"):
        if name in sections:
            found += _margins(name, sections[name])
    return found


def absent(report: Report) -> list[tuple[str, str]]:
    """Charts that a report of this kind could have and this one lacks: the name, and what would measure it."""
    have = {chart.name for chart in charts(report)}
    families = {
        "accepted length": ("accepted-",),
        "acceptance by position": ("positions-",),
        "time by stage": ("stages-",),
        "cache by layer": ("cache",),
        "margins": ("margins-",),
    }
    if report.kind == "inspect":
        families = {"cache by layer": ("cache",)}
    missing = [name for name, starts in families.items() if not any(c.startswith(starts) for c in have)]
    if report.kind != "inspect" and "weights" not in report.sections:
        missing.append("real draft")
    return [(name, WOULD_MEASURE[name]) for name in missing]


def _of_modes(name: str, section: Mapping[str, Any]) -> Iterator[Chart]:
    """Accepted length, acceptance by position, rounds by length and stages of the modes side by side."""
    label = section.get("label") or "real draft"
    rows = section["modes"] if name == "weights" else section["rows"]
    rows = [row for row in rows if row.get("role", "mode") in ("mode", "baseline")]
    series = _series([row["mode"] for row in rows])
    known = [row for row in rows if _finite(row.get("accepted_length"))]
    if any(row["mode"] != "plain" for row in known):
        yield Chart(
            f"accepted-{name}",
            f"Accepted length ({label})",
            "tokens committed per forward of the target, mean over the rounds; plain decoding commits one",
            svg.bars(
                [(row["mode"], row["accepted_length"], series[row["mode"]]) for row in known],
                label=f"Accepted length by mode, {label}",
            ),
            Table(
                "Accepted length",
                ("mode", "accepted length", "rounds", "forwards/token"),
                tuple(
                    (row["mode"], _two(row["accepted_length"]), _count(row), _two(row.get("forwards_per_token")))
                    for row in known
                ),
            ),
        )
    yield from _positions(name, label, rows, series)
    yield from _lengths(name, label, rows, series)
    yield from _stages(name, label, rows, name == "benchmark" or bool(section.get("tiny")))


def _speed_ups(section: Mapping[str, Any]) -> Iterator[Chart]:
    rows = [row for row in section["rows"] if row["role"] != "baseline" and _finite(row["speed_up"])]
    if not rows:
        return
    series = _series([row["mode"] for row in rows])
    spread = [(row["low"], row["high"]) if _finite(row["low"]) and _finite(row["high"]) else None for row in rows]
    yield Chart(
        "speed-measured",
        "Decoding speed, times that of plain decoding",
        method(section),
        svg.ranges(
            [(row["mode"], row["speed_up"], ends, series[row["mode"]]) for row, ends in zip(rows, spread, strict=True)],
            1.0,
            (section["floor"] or 1.0),
            label="Speed-up with intervals by mode",
        ),
        Table(
            "Speed-up",
            ("mode", "against", "speed-up", "from", "to", "difference"),
            tuple(
                (row["mode"], row["against"], *map(_two, (row["speed_up"], row["low"], row["high"])), row["difference"])
                for row in rows
            ),
        ),
    )


def _positions(name: str, label: str, rows: Sequence[Mapping[str, Any]], series: Mapping[str, int]) -> Iterator[Chart]:
    drawn = [row for row in rows if row.get("per_position")]
    if not drawn:
        return
    modes = [row["mode"] for row in drawn]
    longest = max(len(row["per_position"]) for row in drawn)
    yield Chart(
        f"positions-{name}",
        f"Acceptance by block position ({label})",
        "the share of rounds in which the drafted token at this position was accepted",
        svg.lines(
            modes,
            [row["per_position"] for row in drawn],
            [series[mode] for mode in modes],
            label=f"Acceptance by position, {label}",
        ),
        Table(
            "Acceptance by position",
            ("position", *modes),
            tuple(
                (
                    str(k + 1),
                    *(f"{row['per_position'][k]:.0%}" if k < len(row["per_position"]) else "–" for row in drawn),
                )
                for k in range(longest)
            ),
        ),
    )


def _lengths(name: str, label: str, rows: Sequence[Mapping[str, Any]], series: Mapping[str, int]) -> Iterator[Chart]:
    drawn = [row for row in rows if row.get("histogram")]
    if not drawn:
        return
    counts = [{int(length): count for length, count in row["histogram"].items()} for row in drawn]
    totals = [sum(of_row.values()) for of_row in counts]
    lengths = range(1, max(length for of_row in counts for length in of_row) + 1)
    shares = [{n: c / total for n, c in of_row.items()} for of_row, total in zip(counts, totals, strict=True)]
    yield Chart(
        f"lengths-{name}",
        f"Rounds by accepted length ({label})",
        "how many rounds committed so many tokens; 1 means that every drafted token was rejected",
        svg.histograms(
            [(row["mode"], share, series[row["mode"]]) for row, share in zip(drawn, shares, strict=True)],
            label=f"Rounds by accepted length, {label}",
        ),
        Table(
            "Rounds by accepted length",
            ("length", *(row["mode"] for row in drawn)),
            tuple((str(n), *(str(of_row.get(n, 0)) for of_row in counts)) for n in lengths),
        ),
    )


def _stages(name: str, label: str, rows: Sequence[Mapping[str, Any]], tiny: bool) -> Iterator[Chart]:
    timed = [(row["mode"], stage_shares(row.get("stage_seconds") or {})) for row in rows]
    timed = [(mode, shares) for mode, shares in timed if shares]
    if not timed:
        return
    stages = list(dict.fromkeys(stage for _, shares in timed for stage in shares))
    yield Chart(
        f"stages-{name}",
        f"Time by stage ({label})",
        "the share of a round's time that each stage takes, as the tree's own stage_times say"
        + ("; of a tiny model, so no seconds are shown" if tiny else ""),
        svg.stacked(timed, stages, label=f"Time by stage, {label}"),
        Table(
            "Time by stage",
            ("stage", *(mode for mode, _ in timed)),
            tuple((stage, *(_percent(shares.get(stage)) for _, shares in timed)) for stage in stages),
        ),
    )


def stage_shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Shares of the stages, without the parts of a stage that some trees list beside it (build_heap is in build)."""
    whole = {name: s for name, s in seconds.items() if not any(name.startswith(f"{other}_") for other in seconds)}
    total = sum(whole.values())
    return {name: s / total for name, s in whole.items()} if total > 0 else {}


def _layout(sections: Mapping[str, Any]) -> Iterator[Chart]:
    section = cache_section(sections)
    if section is None:
        return
    kinds = [kind if kind in KIND_NAMES else "none" for kind in section["layers"]]
    read = [int(index) for index in section["read_by_draft"]]
    rows = tuple(
        (f"{kind[:1].upper()} {kind}", str(kinds.count(kind)), spans(_where(kinds, kind)), KIND_NAMES[kind])
        for kind in dict.fromkeys(kinds)
    )
    if read:
        rows += (("thick border", str(len(read)), spans(read), "hidden states that the draft reads"),)
    yield Chart(
        "cache",
        f"Cache by layer ({section['class_name']})",
        "what each layer of the real config's cache keeps; a letter for each layer, 16 to a row",
        svg.cells(kinds, _TINTS, read, label="What each layer's cache keeps"),
        Table("Cache by layer", ("kind", "layers", "which", "keeps"), rows),
    )


def cache_section(sections: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The layout of the cache: a section of a validation, a part of an inspection, or None where it is unknown."""
    if "cache" in sections:
        found: Mapping[str, Any] = sections["cache"]
        return found
    inspection = sections.get("inspection") or {}
    cache = (inspection.get("target") or {}).get("cache") or {}
    if not cache.get("layers"):
        return None
    return {**cache, "read_by_draft": (inspection.get("draft") or {}).get("layer_ids") or ()}


def spans(numbers: Sequence[int]) -> str:
    """0, 1, 2, 4 as "0–2, 4"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def _margins(name: str, section: Mapping[str, Any]) -> Iterator[Chart]:
    """Each first differing token against the noise of plain decoding in the same run."""
    exact = name == "losslessness"
    key = "margin" if exact else "behind"
    rows: list[tuple[str, list[tuple[float, bool]]]] = []
    entries: list[tuple[str, ...]] = []
    for row in section["modes"]:
        mode = f"{row['mode']}, {row['profile']}" if exact else row["mode"]
        values = []
        for difference in row["differences"]:
            kind = difference.get("kind", "corruption")
            if _finite(difference[key]):
                values.append((float(difference[key]), kind == "corruption"))
            told = (*(_cell(difference[field]) for field in _DIFFERENCE), _three(difference[key]), kind)
            entries.append((mode, *told))
        if values:
            rows.append((mode, values))
    if not rows:
        return
    noises = [reference["noise"] for reference in section["references"]] if exact else [section["noise"]]
    noise = max((float(value) for value in noises if _finite(value)), default=0.0)
    what = {
        "bf16": "bf16, tiny model",
        "slice": "a slice at real width",
        "weights": "on the checkpoint",
        "losslessness": "fp32, tiny model",
    }[name]
    meaning = (
        "plain decoding's best logit minus its second best where a text first differs; in fp32 no difference is right"
        if exact
        else "how far the emitted token lies behind plain decoding's choice, in logits: round marks, within the noise "
        "of plain decoding, are rounding; crosses are corruption"
    )
    yield Chart(
        f"margins-{name}",
        f"Margins of differing tokens ({what})",
        meaning,
        svg.dots(rows, noise, f"noise {noise:.2g}", label=f"Margins of differing tokens, {what}"),
        Table("Differing tokens", ("mode", *_DIFFERENCE, key, "kind"), tuple(entries)),
    )


_DIFFERENCE = ("prompt", "index", "got", "expected")


def _series(modes: Sequence[str]) -> dict[str, int]:
    """Plain decoding has the first colour; the others follow, the same in every chart of a section."""
    others = [mode for mode in dict.fromkeys(modes) if mode != "plain"]
    return {"plain": 0} | {mode: number for number, mode in enumerate(others, 1)}


def _where(kinds: Sequence[str], kind: str) -> list[int]:
    return [index for index, found in enumerate(kinds) if found == kind]


def _count(row: Mapping[str, Any]) -> str:
    if "rounds" in row:
        return str(row["rounds"]) if row["rounds"] else "–"
    return str(sum((row.get("histogram") or {}).values()) or "–")


def _finite(value: float | None) -> bool:
    """Logits that are not numbers have no place on an axis; the tables tell them."""
    return value is not None and math.isfinite(value)


def _cell(value: Any) -> str:
    return "–" if value is None else str(value)


def _two(value: float | None) -> str:
    return f"{value:.2f}" if value is not None and math.isfinite(value) else "–"


def _three(value: float | None) -> str:
    return f"{value:.3g}" if value is not None and math.isfinite(value) else "–"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
