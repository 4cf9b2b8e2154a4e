"""Turns the measured sections of a report into plain tables, for every renderer that shows tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from compatfix.model import Report
from compatfix.report.doctor_tables import doctor_tables
from compatfix.report.table import Table
from compatfix.report.timing import timing_tables

COMPARED = ("texts equal", "rounding", "corruption")


def tables(report: Report) -> list[Table]:
    """Every table that the report's sections make, in reading order; unknown sections make none."""
    return [
        table for name, build in _BUILDERS.items() if name in report.sections for table in build(report.sections[name])
    ]


def _ladder(rungs: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    rows = tuple((rung["title"], rung["status"], _place(rung) + rung["message"]) for rung in rungs)
    if rows:
        yield Table("The published code, one fix at a time", ("step", "result", "what happened"), rows)


def _place(rung: Mapping[str, Any]) -> str:
    place = rung.get("place")
    return f"{place['file']}:{place['line']} " if place else ""


def _benchmark(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple(
        (
            row["mode"],
            _number(row["accepted_length"]),
            _number(row["forwards_per_token"]),
            _raised(row["error"]) if row.get("error") else _shares(row.get("stage_shares") or {}),
        )
        for row in section["rows"]
    )
    label = section["label"]
    columns = ("mode", "accepted length", "target forwards/token", "time by stage")
    if rows:
        note = (
            "forwards count those of the prefill too, and a text may end inside a round: not the inverse of the other"
        )
        yield Table(f"Benchmark ({label})", columns, rows, note)
    positions = max((len(row["per_position"]) for row in section["rows"]), default=0)
    if positions:
        yield Table(
            f"Acceptance by block position ({label})",
            ("mode", *(str(position) for position in range(1, positions + 1))),
            tuple(
                (row["mode"], *(f"{share:.0%}" for share in row["per_position"]))
                for row in section["rows"]
                if row["per_position"]
            ),
            "the share of rounds in which the token at this position of the block was accepted",
            brief=False,
        )


def _number(value: float | None) -> str:
    """A mode that ended in an exception has no numbers."""
    return "–" if value is None else f"{value:.2f}"


def _raised(error: str) -> str:
    """The beginning is enough: the finding has it all."""
    return textwrap.shorten(f"raised {error}", 70, placeholder=" …")


def _shares(shares: Mapping[str, float]) -> str:
    """The stages, without the parts of a stage (build_heap is in build)."""
    whole = {name: share for name, share in shares.items() if not any(name.startswith(f"{n}_") for n in shares)}
    return ", ".join(f"{name} {share:.0%}" for name, share in whole.items())


def _losslessness(section: Mapping[str, Any]) -> Iterator[Table]:
    references = section["references"]
    agree = sum(not reference["disagreements"] and reference["error"] is None for reference in references)
    rows = tuple(
        (
            tally["mode"],
            tally["profile"],
            f"{tally['same']}/{tally['planned']}",
            " / ".join(str(tally["accepted"][kind]) for kind in ("full", "partial", "zero")),
            f"{tally['nodes']['largest']:.1g}" if tally["nodes"]["nodes"] else "",
        )
        for tally in section["modes"]
    )
    if rows:
        yield Table(
            "Losslessness against plain decoding",
            ("mode", "draft", "texts equal", "rounds full/partial/zero", "worst node"),
            rows,
            f"block size 1, generate and an uncached forward agree on {agree} of {len(references)} prompts",
            brief=False,
        )


def _faults(faults: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    rows = tuple((fault["name"], fault["what"], _caught(fault)) for fault in faults)
    if rows:
        yield Table("Planted faults", ("fault", "what was broken", "caught"), rows, brief=False)


def _caught(fault: Mapping[str, Any]) -> str:
    if not fault["applicable"]:
        return "does not apply to this model"
    if not fault["caught"]:
        return "NOT SEEN"
    return f"yes, by {fault['by']}, after {fault['prompts']} prompts"


def _bf16(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple((row["mode"], *_compared(row, row["run"])) for row in section["modes"])
    note = f"noise of plain decoding against itself in this run: {section['noise']:.2g}"
    yield Table("bf16", ("mode", *COMPARED), rows, note, brief=False)


def _slice(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple((row["mode"], *_compared(row, row["run"])) for row in section["modes"])
    note = (
        f"{len(section['layers'])} of {section['depth']} layers, values {section['values']}, on {section['device']} in "
        f"{section['dtype']}, attention {section['attention']}; noise of plain decoding against itself "
        f"{section['noise']:.2g}"
    )
    yield Table("A slice at real width", ("mode", *COMPARED), rows, note)
    chosen = tuple(section["functions"].items())
    if chosen:
        note = "by package that has fast kernels for these layers: what was called of it, or in its place"
        yield Table("Kernels that layers call", ("package", "functions"), chosen, note, brief=False)


def _sampling(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple(
        (
            row["mode"],
            f"takes no {row['lacks']}" if row["lacks"] else row["status"],
            str(row["tokens"]),
            "" if row["p"] is None else f"{row['p']:.2g}",
            f"{max(row['detectable'].values()):.2g}" if row["detectable"] else "",
            ", ".join(f"{name} {count}" for name, count in (row["evidence"] or {}).get("counts", {}).items()),
        )
        for row in section["modes"]
    )
    columns = ("mode", "chances", "tokens", "p at most", "seen in 9 of 10", "tokens by situation")
    note = (
        f"{section['sampler']}; p bounds the chance that right code looks like this, different where it is at most "
        f"{section['alarm']:g} shared out among the modes; the next column is a total variation"
    )
    yield Table("Sampling against the target's exact chances", columns, rows, note)


def _long_run(section: Mapping[str, Any]) -> Iterator[Table]:
    from compatfix.validate.judge_long_run import bounds

    allowed = bounds(section)
    rows = tuple(
        (
            row["mode"],
            str(p["committed"]),
            *(_off(n) for n in (p["state"], own["state"], state, p["logits"], own["logits"], logits)),
        )
        for row in section["modes"]
        for p, own, state, logits in zip(row["points"], section["noise"], allowed.state, allowed.logits, strict=False)
    )
    columns = ("mode", "tokens", "state", "its noise", "allowed", "logits", "their noise", "allowed")
    note = "distance from plain decoding; noise is plain decoding's distance from itself at that length"
    yield Table(f"One text of {section['tokens']} tokens", columns, rows, note, brief=False)


def _off(number: float | None) -> str:
    return "–" if number is None else f"{number:.1e}"


def _weights(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple(
        (
            row["mode"],
            *_compared(row, section["prompts"]),
            _number(row["accepted_length"]),
            _number(row["forwards_per_token"]),
        )
        for row in section["modes"]
    )
    columns = ("mode", *COMPARED, "accepted length", "target forwards/token")
    note = (
        f"on {section['device']} in {section['dtype']}; noise of plain decoding against itself {section['noise']:.2g}"
    )
    runtime = section.get("runtime") or {}
    if runtime.get("strategy"):
        note += f"; verified by {runtime['strategy']} (noise {runtime['noise']:.2g}, "
        note += f"smallest planted fault {runtime['fault']:.2g})"
    yield Table("On the checkpoint (real draft)", columns, rows, note)


def _compared(row: Mapping[str, Any], prompts: int) -> tuple[str, str, str]:
    """Texts equal, and the others by kind; a mode that raised says so."""
    kinds = [difference["kind"] for difference in row["differences"]]
    same = f"{row['same']}/{prompts}" + (f", then {row['error']['type']}" if row["error"] else "")
    return same, str(kinds.count("rounding")), str(kinds.count("corruption"))


def _patch(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple((fix["code"], fix["place"], _line(fix["before"]), _line(fix["after"])) for fix in section["fixes"])
    if rows:
        yield Table("Fixes", ("code", "place", "before", "after"), rows, brief=False)


def _line(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= 100 else line[:99] + "…"


def _baseline(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple((entry["code"], entry["path"], entry["message"], str(entry["count"])) for entry in section["gone"])
    if rows:
        note = f"{section['known']} findings of this run are known; these are to be taken out of {section['file']}"
        yield Table("Known findings that no longer occur", ("code", "path", "message", "times"), rows, note)


def _diagnosis(section: Mapping[str, Any]) -> Iterator[Table]:
    rows = tuple(
        (
            suspect["name"],
            suspect["status"],
            *("" if suspect[name] is None else f"{suspect[name]:.2f}" for name in ("before", "after")),
            f"{suspect['mode']}, {suspect['prompts']} prompts" if suspect["before"] is not None else "",
            suspect["reason"],
            suspect["evidence"],
        )
        for suspect in section["suspects"]
    )
    columns = ("suspect", "what it is", "without", "with", "measured on", "how it is known", "evidence")
    note = "accepted length without and with the toggle that did most; a cause is measured on top of those above it"
    yield Table("Why acceptance is what it is", columns, rows, note)


Build = Callable[[Any], Iterator[Table]]
_BUILDERS: dict[str, Build] = {
    "diagnosis": _diagnosis,
    "doctor": doctor_tables,
    "slice": _slice,
    "weights": _weights,
    "measured": timing_tables,
    "ladder": _ladder,
    "benchmark": _benchmark,
    "losslessness": _losslessness,
    "faults": _faults,
    "bf16": _bf16,
    "sampling": _sampling,
    "long_run": _long_run,
    "patch": _patch,
    "baseline": _baseline,
}
