"""What is said of a long run: whether state and logits drift faster than plain decoding drifts from itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from compatfix.model import Finding
from compatfix.validate.raised import raised
from compatfix.validate.rounding import TOKEN_FACTOR

# The runtime's own bound between rounding and error (docs/architecture.md). Noise that happens to be nothing counts as
# a few rounding steps of the dtype.
FACTOR = 4.0
FLOOR = 8.0
POINTS = 8

Section = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Bounds:
    """By eighth of the text: what rounding explains of the state and of the logits, and behind the best token."""

    state: tuple[float, ...]
    logits: tuple[float, ...]
    behind: float


def bounds(section: Section) -> Bounds:
    """Noise grows with the text, so each eighth has the largest noise up to it."""
    floor = FLOOR * section["unit"]
    state, logits = (tuple(accumulate((max(n[what], floor) for n in section["noise"]), max)) for what in _WHAT)
    return Bounds(
        tuple(FACTOR * noise for noise in state),
        tuple(FACTOR * noise for noise in logits),
        TOKEN_FACTOR * max(logits, default=floor),
    )


def wrong_long_run(section: Section | None) -> list[Finding]:
    """Modes that raised, left plain decoding's text by more than rounding, or drift faster than it does."""
    found = []
    for row in (section or {}).get("modes", ()):
        assert section is not None
        what = f"{row['mode']} on {section['tokens']} tokens"
        if row["error"] is not None:
            found.append(raised(what, row["error"]))
            continue
        why = _tokens(row, section) or _drift(row, section)
        if why:
            found.append(Finding("CF901", "error", "measured", f"{what}: {why}", details=dict(row)))
    return found


def open_long_run(section: Section | None) -> list[Finding]:
    """What keeps a long run from counting: a text or checkpoints that are missing."""
    missing = []
    for row in (section or {}).get("modes", ()):
        assert section is not None
        what = f"{row['mode']} on {section['tokens']} tokens"
        if row["lost"]:
            missing.append(f"{what}: the text could not be followed in {row['lost']} rounds")
        compared = sum(point["logits"] is not None for point in row["points"])
        if compared < POINTS:
            missing.append(f"{what}: {compared} of {POINTS} checkpoints were compared")
    return [Finding("CF903", "error", "measured", text) for text in missing]


def praise_long_run(section: Section) -> str:
    """What was seen, in one clause."""
    names = ", ".join(row["mode"] for row in section["modes"])
    return f"{names} on one text of {section['tokens']} tokens: {growth(section)}"


def growth(section: Section) -> str:
    """How the state's error grew, beside plain decoding's own noise."""
    noise = [entry["state"] for entry in section["noise"]]
    first, last = (max((row["points"][i]["state"] for row in section["modes"] if row["points"]), default=0.0)
                   for i in (0, -1))  # fmt: skip
    return (
        f"the state's error goes from {first:.1g} to {last:.1g}, plain decoding's noise from {noise[0]:.1g} to "
        f"{noise[-1]:.1g}"
    )


_WHAT = ("state", "logits")


def _tokens(row: Row, section: Section) -> str:
    if row["produced"] != section["tokens"]:
        return f"{row['produced']} tokens were returned"
    allowed = bounds(section).behind
    if row["behind"] <= allowed:
        return ""
    return (
        f"token {row['index']} lies {row['behind']:.2g} behind plain decoding's best one, where rounding explains "
        f"{allowed:.2g}"
    )


def _drift(row: Row, section: Section) -> str:
    allowed = bounds(section)
    for point, state, logits in zip(row["points"], allowed.state, allowed.logits, strict=False):
        where = f"{point['committed']} tokens behind the prompt"
        if point["state"] > state:
            note = f" ({point['note']})" if point["note"] else ""
            return (
                f"the state is {point['state']:.2g} off {where}, where rounding explains {state:.2g}: "
                f"layer {point['layer']}, {point['tensor']}{note}"
            )
        if point["logits"] is not None and point["logits"] > logits:
            return f"the logits are {point['logits']:.2g} off {where}, where rounding explains {logits:.2g}"
    return ""
