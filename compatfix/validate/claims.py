"""What a tree says of a run, and leaves of its arguments, against what was seen of it.

None of it shows in the text: numbers that a speed-up is read from, arguments that the caller goes on using, acceptance
given away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compatfix.validate.results import COUNT_FIELDS

if TYPE_CHECKING:
    from compatfix.validate.bench import Run


def claim_difference(run: Run) -> dict[str, Any] | None:
    """What the tree says it committed per round against what was seen; the last round may be cut at the text's end."""
    claimed, seen = run.claimed, run.lengths
    if claimed is None or run.watch.lost:
        return None
    cut = bool(seen) and len(claimed) == len(seen) and 0 < claimed[-1] <= seen[-1]
    if claimed == seen or (cut and claimed[:-1] == seen[:-1]):
        return None
    pairs = zip(claimed, seen, strict=False)
    index = next((i for i, (says, was) in enumerate(pairs) if says != was), min(len(claimed), len(seen)))
    return {"round": index + 1, "claimed": claimed, "seen": seen}


def field_differences(run: Run, prompt: Sequence[int]) -> list[dict[str, Any]]:
    """Fields of the result, by name, that say something else than was seen."""
    found = []
    if run.unread is not None:
        name, holds = run.unread
        found.append({"field": name, "claimed": holds, "seen": "a list of whole numbers is expected"})
    rounds = len(run.watch.rounds)
    seen: dict[str, tuple[int, ...]] = {"prompt": (len(prompt),), "new": (len(run.tokens),)}
    if not run.watch.lost:
        # The prefill is a round to some. Rounds that took several forwards are counted by their commits.
        seen["rounds"] = (rounds, rounds + 1, len(run.lengths) or rounds)
    for what, right in seen.items():
        for name in COUNT_FIELDS[what]:
            if name in run.counts and run.counts[name] not in right:
                found.append({"field": name, "claimed": f"{run.counts[name]:g}", "seen": f"{right[0]} seen"})
    return found


def changes(name: str, before: Any, after: Any) -> list[str]:
    """One sentence about an argument that is not what was passed: nothing, a list, or a list of lists."""
    if before == after:
        return []
    rows = isinstance(before, list) and before and isinstance(before[0], list)
    was, now = (before[0], after[0] if len(after) == 1 else after) if rows else (before, after)
    if len(was) != len(now):
        return [f"{name} has {len(now)} entries instead of {len(was)}"]
    place = next(i for i, (old, new) in enumerate(zip(was, now, strict=True)) if old != new)
    return [f"{name}[{place}] is {now[place]} instead of {was[place]}"]


def given_away(run: Run, prompt: Sequence[int], limit: int, stops: Sequence[int]) -> tuple[int, list[dict[str, Any]]]:
    """Rounds whose commit was seen, and those of them that committed fewer tokens than the target agreed with.

    Left out are rounds in which the text ends, by a stop token or by its length.
    """
    watch = run.watch
    if watch.lost:
        return 0, []
    followed, short = 0, []
    begin = len(prompt)
    for number, committed in enumerate(watch.counts[1:], start=1):
        # Several forwards may verify one round: they begin behind the same text.
        paths = [
            ([forward.tokens[node] for node in path], forward.argmax[path[-1]])
            for forward in watch.rounds
            if len(forward.committed) == begin
            for path in [forward.walk()]
        ]
        tokens, behind = max(paths, key=lambda one: len(one[0]), default=([], 0))
        ends = begin - len(prompt) + len(tokens) >= limit or any(token in stops for token in (*tokens, behind))
        if tokens and not ends:
            followed += 1
            if committed < len(tokens):
                short.append({"round": number, "committed": committed, "agreed": len(tokens)})
        begin += committed
    return followed, short
