"""Two reports side by side: verdicts, findings that came and went, numbers, and what cannot be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compatfix.model import LEVELS, SCOPES, Finding, Report
from compatfix.report.fingerprints import fingerprint

# What a run was asked to do: numbers of runs that differ in one of these are not those of the same experiment.
_SETTINGS = ("prompts", "tokens", "seed")
_SUBJECTS = ("target", "draft", "judged on")
_ASIDE = ("target commit", "draft commit", "tree", "tree judged", "python", "torch", "transformers")


@dataclass(frozen=True)
class Change:
    """One thing in both reports, as text for people; `note` says what the change means, empty where nothing changed."""

    name: str
    before: str
    after: str
    note: str = ""


@dataclass(frozen=True)
class Number:
    """A measured number in both reports; `after` minus `before` is the difference. None where a report lacks it.

    `noise` is true of a timed ratio that each run's own interval lets be what the other measured.
    """

    name: str
    before: float | None
    after: float | None
    noise: bool = False

    @property
    def difference(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Comparison:
    """`worse` says why the second report is worse, a line per reason; it is empty where it is not.

    `subject` are changes of what was run, `incomparable` what is therefore left out.
    """

    subject: tuple[Change, ...]
    incomparable: tuple[str, ...]
    scopes: tuple[Change, ...]
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]
    numbers: tuple[Number, ...]
    worse: tuple[str, ...]


def compare(before: Report, after: Report) -> Comparison:
    """What changed from one report to the other.

    The second is worse where a scope that passed no longer does, or where it has an error that the first had not and
    that no baseline knows. Numbers are shown and judge nothing: what counts in them is what the verdict says.
    """
    scopes = tuple(_scopes(before, after))
    gone, new = _without(before.findings, after.findings), _without(after.findings, before.findings)
    incomparable = tuple(_incomparable(before, after))
    numbers = tuple(_numbers(before, after)) if not _other_experiment(before, after) else ()
    worse = [f"scope {c.name}: {c.before}, now {c.after}" for c in scopes if c.note == "worse"]
    worse += [f"new error {_told(f)}" for f in new if f.level == "error" and not f.known]
    return Comparison(tuple(_subject(before, after)), incomparable, scopes, gone, new, numbers, tuple(worse))


def _subject(before: Report, after: Report) -> Iterator[Change]:
    if before.kind != after.kind:
        yield Change("kind", before.kind, after.kind)
    for name in (*_SUBJECTS, *_ASIDE):
        old, new = before.subject.get(name), after.subject.get(name)
        if old != new:
            yield Change(name, _word(old), _word(new))
    old_run, new_run = _settings(before), _settings(after)
    for name in (*_SETTINGS, "budgets", "target_class", "attention"):
        if old_run.get(name) != new_run.get(name):
            yield Change(name, _word(old_run.get(name)), _word(new_run.get(name)))
    if before.version != after.version:
        yield Change("compatfix", _word(before.version), _word(after.version))


def _incomparable(before: Report, after: Report) -> Iterator[str]:
    for label, report in (("first", before), ("second", after)):
        if report.verdict is None:
            yield f"verdicts are not compared: the {label} report ({report.kind}) gives none"
    other = _other_experiment(before, after)
    if other:
        yield f"numbers are not compared: other {', '.join(other)}"
        return
    for label, modes in (("before", _modes(before) - _modes(after)), ("after", _modes(after) - _modes(before))):
        if modes:
            yield f"measured only {label}: {', '.join(sorted(modes))}"


def _other_experiment(before: Report, after: Report) -> list[str]:
    names = [name for name in _SUBJECTS if before.subject.get(name) != after.subject.get(name)]
    old, new = _settings(before), _settings(after)
    # A gate that stopped before it ran anything has no settings, and no numbers either.
    return names + [name for name in _SETTINGS if old and new and old.get(name) != new.get(name)]


def _scopes(before: Report, after: Report) -> Iterator[Change]:
    old, new = (
        {entry.scope: entry.status for entry in report.verdict.scopes} if report.verdict else {}
        for report in (before, after)
    )
    # A scope that passed and of which nothing is known any more no longer passes.
    for scope in SCOPES if old else ():
        was, now = old.get(scope, "unmeasured"), new.get(scope, "unmeasured")
        note = ""
        if was != now:
            note = "worse" if was == "passed" else "better" if now == "passed" else "changed"
        yield Change(scope, was, now, note)


def _without(findings: Sequence[Finding], others: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those that the others lack, the gravest first; of several alike only as many as are missing."""
    left = Counter(map(fingerprint, others))
    found = []
    for finding in findings:
        name = fingerprint(finding)
        if left[name] > 0:
            left[name] -= 1
        else:
            found.append(finding)
    return tuple(sorted(found, key=lambda f: LEVELS.index(f.level)))


def _numbers(before: Report, after: Report) -> Iterator[Number]:
    old, new = dict(_measured(before)), dict(_measured(after))
    for name in dict.fromkeys((*old, *new)):
        yield Number(name, old.get(name), new.get(name))
    yield from _timed(before, after)


def _timed(before: Report, after: Report) -> Iterator[Number]:
    """Speed-ups of both reports, side by side; not those of another device or sampler, or against another baseline."""
    sections = [report.sections.get("measured") for report in (before, after)]
    old, new = ({row["mode"]: row for row in (section or {}).get("rows", ())} for section in sections)
    if None not in sections and _setting(sections[0]) != _setting(sections[1]):
        return
    for mode in dict.fromkeys((*old, *new)):
        one, two = old.get(mode, {}), new.get(mode, {})
        if (one or two).get("role") == "baseline" or (one and two and one["against"] != two["against"]):
            continue
        for prefix, words in (("", "speed-up"), ("prefill_", "prefill speed-up")):
            values = [row.get(f"{prefix}speed_up") for row in (one, two)]
            if any(value is not None for value in values):
                yield Number(f"{words}, {mode} (timed)", values[0], values[1], noise=_overlap(one, two, prefix))


def _setting(section: Mapping[str, Any] | None) -> list[Any]:
    return [(section or {}).get(name) for name in ("device", "dtype", "threads", "sampler")]


def _overlap(one: Mapping[str, Any], two: Mapping[str, Any], prefix: str) -> bool:
    """Whether the intervals meet; runs without an interval tell no difference either."""
    if not one or not two:
        return False
    known = [
        float(row[prefix + name]) for row in (one, two) for name in ("low", "high") if row[prefix + name] is not None
    ]
    return len(known) < 4 or (known[0] <= known[3] and known[2] <= known[1])


def _measured(report: Report) -> Iterator[tuple[str, float | None]]:
    """Every number that two runs of the same experiment share, by name."""
    sections = report.sections
    for section, rows in _rows(report):
        for row in rows:
            for key, words in _ROW_NUMBERS:
                if row.get(key) is not None:
                    yield f"{words}, {row['mode']} ({section})", float(row[key])
    for name in ("bf16", "slice", "weights"):
        if name in sections:
            yield f"noise ({name})", sections[name]["noise"]
            for row in sections[name]["modes"]:
                kinds = [difference["kind"] for difference in row["differences"]]
                # Of another number of texts it is another number, not a smaller one.
                yield f"texts equal of {row['run']}, {row['mode']} ({name})", float(row["same"])
                yield f"texts corrupted of {row['run']}, {row['mode']} ({name})", float(kinds.count("corruption"))
    for tally in (sections.get("losslessness") or {}).get("modes", ()):
        yield f"texts equal of {tally['planned']}, {tally['mode']}, {tally['profile']}", float(tally["same"])
        if tally["nodes"]["nodes"]:
            yield f"worst node, {tally['mode']}, {tally['profile']}", tally["nodes"]["largest"]
    runtime = _settings(report).get("runtime") or {}
    if runtime.get("strategy"):
        yield "noise of the runtime's measurement", runtime["noise"]
        yield "smallest planted fault of the runtime's measurement", runtime["fault"]
    if "faults" in sections:
        yield "planted faults caught", float(sum(bool(fault["caught"]) for fault in sections["faults"]))
    for level in LEVELS:
        yield f"findings of level {level}", float(sum(finding.level == level for finding in report.findings))


_ROW_NUMBERS = (
    ("accepted_length", "accepted length"),
    ("forwards_per_token", "target forwards/token"),
)


def _rows(report: Report) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    benchmark, weights = report.sections.get("benchmark"), report.sections.get("weights")
    if benchmark:
        yield benchmark["label"], benchmark["rows"]
    measured = report.sections.get("measured")
    if measured or weights:
        yield "real draft", measured["rows"] if measured else (weights or {})["modes"]


def _modes(report: Report) -> set[str]:
    return {row["mode"] for _, rows in _rows(report) for row in rows}


def _settings(report: Report) -> Mapping[str, Any]:
    found: Mapping[str, Any] = report.sections.get("validation") or {}
    return found


def _told(finding: Finding) -> str:
    place = f" {finding.location}" if finding.location else ""
    return f"{finding.code}{place}: {finding.message}"


def _word(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
