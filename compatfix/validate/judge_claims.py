"""What is said of claims, of changed arguments and of acceptance given away: the text is right and still something is
wrong."""

from __future__ import annotations

from collections.abc import Sequence

from compatfix.model import Finding
from compatfix.validate.tally import Tally

# A mode as it is called in messages, and its numbers.
Named = tuple[str, Tally]


def beside_the_text(modes: Sequence[Named]) -> list[Finding]:
    return [*_claims(modes), *_changed_arguments(modes), *_given_away(modes)]


def _claims(modes: Sequence[Named]) -> list[Finding]:
    """Accepted lengths are what a speed-up is read from: what the tree says of them must be what it did."""
    found = []
    for name, tally in modes:
        mode = {"mode": tally["mode"]}
        if tally["claims"]:
            first = tally["claims"][0]
            message = (
                f"{name} ({tally['profile']}): the tree claims {sum(first['claimed'])} accepted "
                f"tokens in {len(first['claimed'])} rounds on prompt {first['prompt']}, {sum(first['seen'])} in "
                f"{len(first['seen'])} were seen (first in round {first['round']})"
            )
            found.append(Finding("CF901", "error", "measured", message, details={**mode, **first}))
        for first in {entry["field"]: entry for entry in reversed(tally["fields"])}.values():
            message = (
                f"{name} ({tally['profile']}): {first['field']} of the result is {first['claimed']} on prompt "
                f"{first['prompt']}, {first['seen']}"
            )
            found.append(Finding("CF901", "error", "measured", message, details={**mode, **first}))
    return found


def _changed_arguments(modes: Sequence[Named]) -> list[Finding]:
    """A caller that generates again with the same prompt or list of stop tokens goes on with what is left of it."""
    found = []
    for name, tally in modes:
        for first in {entry["what"].partition("[")[0]: entry for entry in reversed(tally["changed"])}.values():
            where = f" ({first['where']})" if first["where"] else ""
            message = (
                f"{name} ({tally['profile']}): the call changes its caller's arguments: behind prompt "
                f"{first['prompt']}{where} {first['what']}"
            )
            found.append(Finding("CF901", "error", "measured", message, details={"mode": tally["mode"], **first}))
    return found


def _given_away(modes: Sequence[Named]) -> list[Finding]:
    """Warnings: the text is right, and fewer tokens a round are kept than the target agreed with."""
    found = []
    for name in dict.fromkeys(name for name, _ in modes):
        tallies = [tally for other, tally in modes if other == name]
        rounds, short = (sum(tally[key] for tally in tallies) for key in ("rounds_followed", "rounds_short"))
        if short:
            first = next(entry for tally in tallies for entry in tally["short"])
            message = (
                f"{name} accepts fewer tokens than the target agrees with in {short} of {rounds} rounds, first in "
                f"round {first['round']} of prompt {first['prompt']} ({first['committed']} of {first['agreed']})"
            )
            details = {"mode": tallies[0]["mode"], "rounds": rounds, "short": short, "first": first}
            found.append(Finding("CF918", "warning", "measured", message, details=details))
    return found


def without_lengths(modes: Sequence[Named]) -> list[Finding]:
    """A note on chains and trees whose results hold no accepted lengths. A draft's own loop is published without."""
    names = [name for name, tally in modes if tally["mode"] != "loop" and tally["profile"] == "oracle"]
    lengths = {name: sum(tally["lengths_compared"] for other, tally in modes if other == name) for name in names}
    same = {name: sum(tally["same"] for other, tally in modes if other == name) for name in names}
    silent = [name for name, count in lengths.items() if not count and same[name]]
    if not silent:
        return []
    message = f"{', '.join(silent)}: the result holds no accepted lengths, so none were compared with those seen"
    return [Finding("CF919", "note", "measured", message)]
