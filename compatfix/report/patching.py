"""What `patch` and `rules` print: plain lines, so that source code passes through untouched."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from compatfix.codes import CODES, Code
from compatfix.model import PatchPlan

NOT_PROVEN = "code is changed, not yet proven; the gate proves it:"


def plan_lines(plan: PatchPlan, *, written: bool, target: str | None = None, draft: str | None = None) -> Iterator[str]:
    """Each fix, what was not fixed and why, what was copied; and, once written, how to prove it and take it back."""
    from compatfix.rewrites import render_plan

    yield from render_plan(plan)
    if plan.empty:
        yield "nothing to change"
    elif written:
        subject = ["--target", target or "MODEL"] + (["--draft", draft] if draft else [])
        yield NOT_PROVEN
        yield f"  {shlex.join(['compatfix', 'gate', plan.root, *subject])}"
        yield f"take it back: {shlex.join(['compatfix', 'undo', plan.root])}"
    else:
        yield "nothing was written"


def plan_json(plan: PatchPlan) -> str:
    """The plan without file contents."""
    from compatfix.serial import to_plain

    plain = to_plain(plan)
    for change in plain["changes"]:
        del change["before"], change["after"]
    return json.dumps(plain, indent=2, ensure_ascii=False)


def rules_text(form: str) -> str:
    """Every code: number, level, whether `patch` rewrites it and `repro` shows it, and its title."""
    from compatfix.repros import available
    from compatfix.rewrites import all_rules

    rewritten = {rule.code for rule in all_rules() if rule.INVALID}
    shown = available()
    if form == "json":
        entries = [_as_json(entry, entry.code in rewritten, entry.code in shown) for entry in CODES.values()]
        return json.dumps(entries, indent=2, ensure_ascii=False)
    rows = [
        (
            entry.code,
            entry.name,
            entry.level,
            "fix" if entry.code in rewritten else "",
            "repro" if entry.code in shown else "",
            entry.title,
        )
        for entry in CODES.values()
    ]
    if form == "md":
        head = ["| code | name | level | patch | repro | what |", "|---|---|---|---|---|---|"]
        return "\n".join(head + ["| " + " | ".join(row) + " |" for row in rows])
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + "  " + row[5] for row in rows
    )


def _as_json(entry: Code, rewritten: bool, shown: bool) -> dict[str, object]:
    return {
        "code": entry.code,
        "name": entry.name,
        "level": entry.level,
        "title": entry.title,
        "rewritten": rewritten,
        "repro": shown,
    }
