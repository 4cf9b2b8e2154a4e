"""What is said of sampling: whether the target's distribution is kept, is not, or too little was seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.model import Finding
from compatfix.validate.raised import raised

# The chance that a run of right code is ever called wrong, shared out among all modes that there can be.
ALARM = 1e-4
MODES = 4
# Nothing is called right that could hide more than this, in total variation, from nine runs of ten.
LIMIT = 0.1
# Tokens in a situation that has to have occurred, for a mode that drafts.
FEWEST = 50
NEEDED = ("behind accepted tokens", "after a rejection")
WAYS = {
    "likelihood": "the likeliest token, the second, the next 2, the next 4 and all others",
    "proposal": "the draft's first candidate, its others, the likeliest token besides and all others",
}

Row = Mapping[str, Any]
Section = Mapping[str, Any]


def status(row: Row) -> str:
    """Whether the target's chances are the "same", "different", or "undecided"; "raised" where sampling did."""
    if row["error"] is not None:
        return "raised"
    if row["p"] is not None and row["p"] <= ALARM / MODES:
        return "different"
    return "undecided" if _missing(row) else "same"


def wrong_sampling(section: Section | None) -> list[Finding]:
    """Modes that do not keep the target's distribution, or that raised while sampling."""
    found = []
    rows = (section or {}).get("modes", ())
    sampler_differs = any(row["mode"] == "plain" and status(row) == "different" for row in rows)
    for row in rows:
        what = f"{_name(row)} at {(section or {})['sampler']}"
        if status(row) == "raised":
            found.append(raised(what, row["error"]))
        elif status(row) == "different":
            message = f"{what} does not keep the target's distribution: {_evidence(row)}"
            if sampler_differs and row["mode"] != "plain":
                message += "; block size 1 does not either, so look at how the tree samples before how it verifies"
            found.append(Finding("CF702", "error", "measured", message, details=dict(row)))
    return found


def open_sampling(section: Section | None) -> list[Finding]:
    """What keeps sampling from being called right."""
    rows = [row for row in (section or {}).get("modes", ()) if status(row) == "undecided"]
    return [
        Finding(
            "CF903",
            "error",
            "measured",
            f"{_name(row)} at {(section or {})['sampler']}: {_missing(row)}",
            fix=f"leave --{row['lacks'].replace('_', '-')} out" if row["lacks"] else None,
        )
        for row in rows
    ]


def praise_sampling(section: Section) -> str:
    """What was seen, in one clause."""
    rows = section["modes"]
    tokens = min(row["tokens"] for row in rows)
    largest = max(max(row["detectable"].values()) for row in rows)
    names = ", ".join(_name(row) for row in rows)
    return (
        f"at {section['sampler']} the target's distribution is kept: {names} on {tokens} tokens each (a total "
        f"variation of {largest:.2g} would have been seen in 9 of 10 runs, false alarms at most {ALARM:g})"
    )


def _name(row: Row) -> str:
    if row["mode"] == "plain":
        return "block size 1"
    return str(row["function"]) if row["mode"] == "loop" else str(row["mode"])


def _missing(row: Row) -> str:
    if row["lacks"]:
        return f"{row['function']} takes no {row['lacks']}, so that it cannot be asked to sample this way"
    if row["lost"]:
        return f"what was committed could not be followed in {row['lost']} rounds"
    if not row["tokens"] or row["texts"] < row["planned"]:
        return f"{row['texts']} of {row['planned']} texts were sampled"
    counts = row["evidence"]["counts"]
    rare = [name for name in NEEDED if counts.get(name, 0) < FEWEST] if row["mode"] != "plain" else []
    if rare:
        return f"only {counts.get(rare[0], 0)} tokens {rare[0]}, {FEWEST} are needed (--samples)"
    largest = max(row["detectable"].values())
    if largest > LIMIT:
        return f"{row['tokens']} tokens would show a total variation of {largest:.2g}, not of {LIMIT:g} (--samples)"
    return ""


def _evidence(row: Row) -> str:
    evidence = row["evidence"]
    where = evidence["situation"]
    if evidence["way"] == "no chance":
        return f"a token was drawn that has no chance at all ({where}; {row['tokens']} tokens)"
    seen = ", ".join(map(str, evidence["observed"]))
    due = ", ".join(f"{count:g}" for count in evidence["expected"])
    return f"{where}, {WAYS[evidence['way']]} were drawn {seen} times, expected {due} (p at most {row['p']:.1g})"
