"""The tables of what was timed. Of a tiny target ratios, shares and counts alone are shown, never its seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compatfix.report.table import Table

TITLE = "Timed on the checkpoint"
ESTIMATED = "Estimate for a device bound by reading weights (not measured)"
MIB = 1 << 20


def timing_tables(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = section["rows"]
    yield _main(section, rows)
    yield Table(
        "Prefill beside plain decoding's",
        ("mode", "speed-up", "interval", "difference"),
        tuple((row["mode"], *_ratio(row, "prefill_")) for row in rows if row["prefill_speed_up"]),
        "the same prompts and runs as above; a mode that drafts also keeps hidden states",
        brief=False,
    )
    yield from _where(rows)
    if section.get("estimate"):
        yield _estimate(section["estimate"])


def method(section: Mapping[str, Any]) -> str:
    """How it was measured, in a line."""
    threads = (
        f" ({section['threads']} thread{'s' * (section['threads'] > 1)})" if section["device_kind"] == "cpu" else ""
    )
    floor = section["floor"]
    together = f"{section['level']:.1%} intervals over the prompts (95% for all comparisons together)"
    text = (
        f"on {section['device']}{threads} in {section['dtype']}, {section['sampler'] or 'greedy'}; "
        f"{section['prompts']} prompts x {section['tokens']} tokens, {section['repetitions']} interleaved repetitions, "
        f"{section['warm_ups']} warm-up run per mode not counted; speed-up: decode time per token, against "
        f"{section['baseline']} where a mode drafts; {together}; noise floor "
        + ("unknown" if floor is None else f"±{floor - 1:.1%} (plain decoding against itself)")
    )
    if section["tiny"]:
        text += (
            f"; the target has {section['target']['parameters'] / 1e6:.1f} M parameters: its ratios say nothing about "
            "a large one, and its seconds are not shown"
        )
    return text


def _main(section: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Table:
    timed = () if section["tiny"] else ("ms/token (quartiles)",)
    columns = ("mode", "speed-up", "interval", "difference", *timed)
    counts = ("accepted length", "tokens per round", "target forwards per token", "draft forwards per token")
    told = []
    for row in rows:
        if row["error"] is not None:
            told.append((row["mode"], "–", "", f"{row['error']['type']}: {row['error']['message']}"))
            continue
        spread = () if section["tiny"] else (_milliseconds(row["seconds_per_token"]),)
        told.append((_name(row), *_ratio(row), *spread, *map(_two, _counts(row))))
    return Table(TITLE, (*columns, *counts, "host reads per round"), tuple(told), method(section))


def _counts(row: Mapping[str, Any]) -> Iterator[float | None]:
    for name in ("accepted_length", "tokens_per_round", "forwards_per_token", "draft_forwards_per_token"):
        yield row[name]
    yield row["reads_per_round"]


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['mode']} ({row['role']})" if row["role"] in ("control", "reference") else str(row["mode"])


def _ratio(row: Mapping[str, Any], prefix: str = "") -> tuple[str, str, str]:
    value, low, high = (row[prefix + name] for name in ("speed_up", "low", "high"))
    if value is None:
        return "–", "", ""
    if row["mode"] == row["against"] or (prefix and row["role"] == "baseline"):
        return "1.00×", "", ""
    spread = "" if low is None or high is None else f"{low:.2f}–{high:.2f}"
    return f"{value:.2f}×", spread, row[f"{prefix}difference"]


def _where(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    read = [(row["mode"], place, str(times)) for row in rows for place, times in row["read_places"].items()]
    if read:
        note = (
            "on an accelerator the host waits for the device at each; the places where most of them are, first prompt"
        )
        yield Table("Where the host reads values", ("mode", "place", "times"), tuple(read), note, brief=False)
    peaks = tuple((row["mode"], f"{row['peak_bytes'] / MIB:.0f}") for row in rows if row["peak_bytes"])
    if peaks:
        yield Table("Peak memory", ("mode", "MiB"), peaks, brief=False)


def _estimate(found: Mapping[str, Any]) -> Table:
    rows = tuple(
        (row["mode"], _two(row["accepted_length"]), f"{row['speed_up']:.2f}×", "beyond the estimate" * row["beyond"])
        for row in found["rows"]
    )
    note = f"an estimate, assuming that {'; '.join(found['assumptions'])}; {found['breaks']}"
    return Table(ESTIMATED, ("mode", "accepted length", "estimate", ""), rows, note, brief=False)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _milliseconds(spread: Sequence[float] | None) -> str:
    if spread is None:
        return "–"
    first, middle, third = (1000 * value for value in spread)
    return f"{middle:.3g} ({first:.3g}–{third:.3g})"
