"""Chain or tree, and which budget: from what was measured, or nothing where it is noise. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compatfix.validate.intervals import Ratio, difference

Compare = Callable[[str, str], Ratio | None]


def recommend(
    names: Sequence[str], baseline: str, compared: Compare, floor: float | None, where: str
) -> dict[str, Any]:
    """The simplest mode that nothing measured is distinguishably faster than.

    `names` are chain and trees, `compared(slow, fast)` says how many times faster the second is.
    Returns {"mode", "sentence", "evidence", "edge", "speed_up"}: `edge` where the best budget is the largest measured.
    """
    ordered = sorted(names, key=simplicity)
    if not ordered:
        return _answer(baseline, "nothing to recommend: no mode that drafts was measured", False, None)
    gains = {name: compared(baseline, name) for name in ordered}
    faster = [name for name in ordered if difference(gains[name], floor) == "faster"]
    if not faster:
        best = max(ordered, key=lambda name: _value(gains[name]))
        return _answer(baseline, f"{_word(baseline)}: {_nothing_faster(best, gains[best], floor)} {where}", False, None)
    chosen = faster[0]
    for name in faster[1:]:
        if difference(compared(chosen, name), floor) == "faster":
            chosen = name
    others = {name: compared(name, chosen) for name in ordered if name != chosen}
    sentence = f"{_word(chosen)}: {_told(gains[chosen])} {_word(baseline)} {where}"
    even = [name for name in ordered if name != chosen and difference(others[name], floor) == "noise"]
    sentence += "".join(f"; {_told(others[name])} {name}" for name in ordered if name != chosen and name not in even)
    if even:
        sentence += f"; no difference that is not noise to {', '.join(even)}, and {chosen} is the simpler one"
    edge = chosen != "chain" and len(ordered) > 1 and chosen == ordered[-1]
    if edge:
        sentence += "; it is the largest budget measured: a larger one may be faster still"
    return _answer(chosen, sentence, edge, gains[chosen])


def simplicity(name: str) -> tuple[int, int]:
    """A chain before any tree, a small tree before a large one."""
    return (0, 0) if name == "chain" else (1, int(name.rpartition("-")[2] or 0))


def _nothing_faster(best: str, gain: Ratio | None, floor: float | None) -> str:
    if difference(gain, floor) == "slower":
        return f"every mode is slower; the best, {best}, has {_told(gain)} its speed"
    return f"nothing is faster by more than noise; the best, {best}, has {_told(gain)} its speed"


def _answer(mode: str, sentence: str, edge: bool, gain: Ratio | None) -> dict[str, Any]:
    numbers = None if gain is None else {"value": gain.value, "low": gain.low, "high": gain.high}
    return {"mode": mode, "sentence": sentence, "evidence": "measured", "edge": edge, "speed_up": numbers}


def _word(name: str) -> str:
    if name.startswith("tree-"):
        return f"tree, budget {name.removeprefix('tree-')}"
    return {"plain": "plain decoding", "library": "the library's plain decoding"}.get(name, name)


def _told(found: Ratio | None) -> str:
    if found is None:
        return "an unknown multiple of"
    spread = "" if found.low is None or found.high is None else f" ({found.low:.2f}–{found.high:.2f})"
    return f"{found.value:.2f}×{spread}"


def _value(found: Ratio | None) -> float:
    return 0.0 if found is None else found.value
