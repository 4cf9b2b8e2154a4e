"""The sentences that the timing adds to a report: what is recommended, what to keep in mind, what is only estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.model import Statement
from compatfix.validate.estimate import estimate_sentence

TOPIC = "speed"


def what_was_timed(sections: Mapping[str, Any]) -> tuple[Statement, ...]:
    """Nothing where nothing was timed. The estimate is the one statement that is not measured, and says so."""
    section = sections.get("measured")
    if section is None:
        return ()
    chosen = section["recommendation"]
    lines = [Statement(TOPIC, "recommendation", f"recommended: {chosen['sentence']}", "measured", chosen)]
    lines += [Statement(TOPIC, "warning", text, "measured") for text in section["warnings"]]
    if section["estimate"] is not None:
        text = estimate_sentence(section["estimate"])
        lines.append(Statement(TOPIC, "estimate", text, "assumed", section["estimate"]))
    return tuple(lines)
