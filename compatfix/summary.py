"""What a run came to, in a few sentences for a reader who meets the tool for the first time. Pure, like conclusion.py.

Each sentence says only what the report holds as measured; what was not measured is named last.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from compatfix.model import Report, ScopeVerdict

TITLE = "in short"
ON_A_COPY = "a patched copy"
IN_PLACE = "patched in place"


def summary(report: Report) -> tuple[str, ...]:
    """The sentences, in reading order; none for a report without a verdict."""
    if report.verdict is None:
        return ()
    return tuple(_sentences(report))


def _sentences(report: Report) -> Iterator[str]:
    assert report.verdict is not None
    sections = report.sections
    yield from _published(sections.get("ladder") or ())
    yield from _code(report, report.verdict.of("code"))
    for scope in ("weights", "draft", "speed"):
        verdict = report.verdict.of(scope)
        if verdict.status in ("failed", "undecided"):
            yield f"{scope.capitalize()}: {verdict.status}: {verdict.reason}."
    yield from _on_weights(report)
    left = [verdict.scope for verdict in report.verdict.scopes if verdict.status == "unmeasured"]
    if left:
        yield f"Not measured here, so not known: {', '.join(left)}."
    yield from _next(report)


def _published(rungs: Any) -> Iterator[str]:
    """The story of the ladder: where the unpatched code stops, and what the usual fixes make of it."""
    if not rungs:
        return
    first = rungs[0]
    if first["status"] == "raised":
        place = first.get("place")
        where = f" at {place['file']}:{place['line']}" if place else ""
        yield f"As published, the code stops on this target{where}: {first['message']}."
    elif first["status"] == "wrong":
        yield f"As published, the code runs on this target and its text is wrong: {_same(first)}."
    usual = next((rung for rung in rungs if rung["title"].startswith("the fixes that everyone")), None)
    judged = rungs[-1]
    if usual is not None and usual["status"] == "wrong":
        text = "The fixes that everyone tries first run without an error and give wrong text"
        worst, right = _best(usual), _best(judged)
        if judged["status"] == "lossless" and worst and right:
            text += f": {worst:.2f} tokens per round with a good draft, where right code has {right:.2f}"
        yield f"{text}."


def _same(rung: Mapping[str, Any]) -> str:
    return f"{rung['same'].replace('/', ' of ')} texts are those of plain decoding"


def _best(rung: Mapping[str, Any]) -> float | None:
    return max(rung["accepted"].values(), default=None) if rung.get("accepted") else None


def _code(report: Report, code: ScopeVerdict) -> Iterator[str]:
    patched = report.subject.get("tree judged") in (ON_A_COPY, IN_PLACE)
    if code.status == "passed":
        modes = [t for t in report.sections.get("losslessness", {}).get("modes", ()) if t["profile"] == "oracle"]
        same, run = sum(t["same"] for t in modes), sum(t["run"] for t in modes)
        planted = [fault for fault in report.sections.get("faults", ()) if fault["applicable"]]
        caught = sum(bool(fault["caught"]) for fault in planted)
        gives = "Patched, it gives" if patched else "This code gives"
        yield (
            f"{gives} exactly the text that the target gives alone: {same} of {run} texts. The check itself was tried: "
            f"{caught} of {len(planted)} faults planted on purpose were seen."
        )
    else:
        subject = "The patched code" if patched else "This code"
        yield f"{subject} is not proven right ({code.status}): {code.reason}."


def _on_weights(report: Report) -> Iterator[str]:
    measured, watched = report.sections.get("measured"), report.sections.get("weights")
    # The same rows as scope draft quotes: those that were timed, with the user's stop tokens, where some were.
    of_modes = [row for row in (measured or {}).get("rows", ()) if row["role"] == "mode"]
    rows = [
        row
        for row in of_modes or (watched or {}).get("modes", ())
        if row.get("accepted_length") and row["mode"] != "plain"
    ]
    if not rows:
        return
    told = ", ".join(f"{row['accepted_length']:.2f} with {_mode(row['mode'])}" for row in rows)
    lead = "With your draft on the real weights a forward of the target yields this many tokens"
    yield f"{lead}: {told} (1.00 would be no gain)."
    if measured:
        yield f"Timed on this device: {measured['recommendation']['sentence']}."


def _mode(mode: str) -> str:
    """`tree-16` in words."""
    kind, _, budget = mode.partition("-")
    if kind == "tree":
        return f"a tree of {budget} nodes"
    return "a chain" if kind == "chain" else mode


def _next(report: Report) -> Iterator[str]:
    assert report.verdict is not None
    code = report.verdict.of("code")
    tree = report.subject.get("tree")
    if code.status == "passed" and report.subject.get("tree judged") == ON_A_COPY and tree:
        fixes = report.sections.get("patch", {}).get("fixes", ())
        if fixes:
            kinds = len({fix["code"] for fix in fixes})
            command = shlex.join(["compatfix", "patch", str(tree)])
            yield f"Your files are untouched; `{command}` writes the {len(fixes)} fixes ({kinds} kinds)."
