"""What each suspect comes to after the elimination, ranked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from compatfix.diagnose.ranking import STATUSES, Measured, Status, best_of, counting, gaining, weight_of
from compatfix.model import Evidence

if TYPE_CHECKING:
    from compatfix.diagnose.toggle import Suspect


@dataclass(frozen=True)
class Level:
    """What was measured with the repairs of all earlier levels on, and the repair that was kept."""

    measured: Sequence[Measured]
    choice: Measured | None


@dataclass(frozen=True)
class SuspectVerdict:
    """One line of the ranking; numbers are of the toggle named, in its mode, and None where nothing was measured."""

    name: str
    question: str
    code: str
    status: Status
    reason: str
    evidence: Evidence
    step: str | None = None
    toggle: str | None = None
    mode: str | None = None
    before: float | None = None
    after: float | None = None
    gain: float | None = None
    chance: float | None = None
    prompts: int = 0
    level: int = 0


def verdicts(
    suspects: Sequence[Suspect], levels: Sequence[Level], failed: Mapping[str, str], hopeless: bool
) -> list[SuspectVerdict]:
    """The ranking: causes first, in the order in which they were found; read evidence that is certain before them.

    `hopeless` says that with every repair on, acceptance is not told from that of an untrained draft: then evidence
    that was only read may name the cause, one suspect at most, and never beside a measured one.
    """
    found = [_verdict(suspect, levels, failed) for suspect in suspects]
    found = [_with_read(verdict, suspect) for verdict, suspect in zip(found, suspects, strict=True)]
    if hopeless and not any(verdict.status == "cause" for verdict in found):
        hinted = next((suspect for suspect in suspects if suspect.read is not None), None)
        found = [_hinted(v, hinted) if hinted is not None and v.name == hinted.name else v for v in found]
    return sorted(found, key=_place)


def _place(verdict: SuspectVerdict) -> tuple[int, int, int, float]:
    return (
        STATUSES.index(verdict.status),
        0 if verdict.status == "cause" and verdict.evidence == "read" else 1,
        verdict.level,
        -(verdict.gain or 0.0),
    )


def _verdict(suspect: Suspect, levels: Sequence[Level], failed: Mapping[str, str]) -> SuspectVerdict:
    blank = SuspectVerdict(suspect.name, suspect.question, suspect.code, "not the cause", "", "measured")
    known = [gaining(level.measured) for level in levels]
    for number, level in enumerate(levels, start=1):
        choice = level.choice
        if choice is not None and choice.suspect == suspect.name:
            step = next(toggle.step for toggle in suspect.toggles if toggle.name == choice.toggle)
            return replace(
                _numbers(blank, choice, number, known[number - 1]),
                status=weight_of(choice),
                reason=_gained(choice),
                step=step,
            )
    first = [entry for entry in levels[0].measured if entry.suspect == suspect.name]
    last = [entry for entry in levels[-1].measured if entry.suspect == suspect.name]
    best = best_of(first)
    if best is None:
        if suspect.toggles or suspect.unmeasured:
            why = suspect.unmeasured or failed.get(suspect.name) or "its toggles are for a mode that was not run"
            return replace(blank, status="unmeasured", reason=why, evidence="assumed")
        if suspect.cleared:
            return replace(blank, reason=suspect.cleared, evidence="read")
        return replace(blank, status="not applicable", reason=suspect.reason, evidence="read")
    note = f"; not measured: {suspect.unmeasured}" if suspect.unmeasured else ""
    if any(entry in first for entry in counting(levels[0].measured)) or any(entry.mends_text for entry in first):
        later = best_of(last)
        keeper = next(level.choice for level in levels if level.choice is not None)
        if later is not None:
            reason = f"gains {best.gain:+.2f} alone, and {later.gain:+.2f} once {keeper.suspect} is repaired"
            return replace(_numbers(blank, best, 0, known[0]), reason=reason + note)
    tried = len(suspect.toggles)
    what = f"none of {tried} toggles raises" if tried > 1 else "the toggle does not raise"
    reason = f"{what} acceptance by more than noise (best {best.gain:+.2f})" + note
    return replace(_numbers(blank, best, 0, known[0]), reason=reason)


def _numbers(
    verdict: SuspectVerdict, entry: Measured, level: int, known: Mapping[tuple[str, str, str], float]
) -> SuspectVerdict:
    return replace(
        verdict,
        toggle=entry.toggle,
        mode=entry.mode,
        before=fmean(entry.before),
        after=fmean(entry.after),
        gain=entry.gain,
        chance=known.get(entry.key),
        prompts=len(entry.gains),
        level=level,
    )


def _gained(choice: Measured) -> str:
    said = f"{choice.toggle}: {fmean(choice.before):.2f} becomes {fmean(choice.after):.2f} ({choice.mode})"
    if choice.mends_text:
        return f"{said}, and the text becomes that of plain decoding ({choice.wrong_before} texts were wrong)"
    return said


def _with_read(verdict: SuspectVerdict, suspect: Suspect) -> SuspectVerdict:
    if suspect.read is None:
        return verdict
    if suspect.read.strength == "certain":
        return replace(verdict, status="cause", reason=suspect.read.text, evidence="read", step=suspect.step)
    if verdict.status == "not the cause" and not suspect.toggles:
        return replace(verdict, reason=f"{suspect.read.text}; acceptance does not say so", evidence="read")
    return verdict


def _hinted(verdict: SuspectVerdict, suspect: Suspect) -> SuspectVerdict:
    assert suspect.read is not None
    reason = f"{suspect.read.text}; acceptance is that of an untrained draft, and nothing measured explains it"
    return replace(verdict, status="cause", reason=reason, evidence="read", step=suspect.step)
