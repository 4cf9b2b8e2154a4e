"""Findings about a pair that the judged tree already answers: it calls the runtime function that takes care of them."""

from __future__ import annotations

import re
from pathlib import Path

from compatfix.model import Finding

# What an inspection says of published code, by code, and what code calls that is not such.
ANSWERS = {"CF408": "draft_forward", "CF611": "used_by"}


def unanswered(root: Path, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """`findings` without those that the source below `root` answers."""
    from compatfix.rewrites.files import python_files

    asked = {code: re.compile(rf"\b{ANSWERS[code]}\(") for code in {f.code for f in findings} & ANSWERS.keys()}
    if not asked:
        return findings
    sources = [(root / name).read_text(encoding="utf-8", errors="replace") for name in python_files(root)]
    answered = {code for code, call in asked.items() if any(call.search(source) for source in sources)}
    return tuple(finding for finding in findings if finding.code not in answered)
