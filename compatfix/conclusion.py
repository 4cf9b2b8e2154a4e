"""What a report comes to: green or red, and why, in a line. Pure; every renderer and every exit code asks here."""

from __future__ import annotations

from collections.abc import Sequence

from compatfix.model import LEVELS, Finding, Level, Report, Scope, Status


def worst_at_least(report: Report, level: Level) -> bool:
    """Whether the report has a finding of `level` or graver."""
    return any(_as_grave(finding, level) for finding in report.findings)


def blocking_findings(report: Report) -> tuple[Finding, ...]:
    """Findings that keep the report from being green: as grave as its `fail_on`, and not known from a baseline."""
    return tuple(f for f in report.findings if _as_grave(f, report.fail_on) and not f.known)


def green(report: Report, required: Sequence[Scope]) -> bool:
    """Whether every required scope passed and no finding stands in the way. Without a verdict a report is never green.

    A known finding stands in nobody's way; a scope that did not pass does, whatever is known.
    """
    return report.verdict is not None and report.verdict.green(tuple(required)) and not blocking_findings(report)


def conclusion(report: Report, required: Sequence[Scope]) -> str:
    """One line: whether the report is green for the required scopes, and if not, what keeps it from being so."""
    known = sum(finding.known for finding in report.findings)
    aside = f"; {known} known finding{'s' * (known > 1)} set aside" if known else ""
    if green(report, required):
        return f"{report.kind}: green ({', '.join(required)} passed{aside})"
    reasons = []
    if report.verdict is not None:
        states = [report.verdict.of(scope) for scope in required]
        reasons = [f"scope {state.scope} is {state.status}" for state in states if state.status != "passed"]
    found = blocking_findings(report)
    for level in LEVELS:
        count = sum(finding.level == level for finding in found)
        if count:
            reasons.append(f"{count} {level}{'s' * (count > 1)}")
    return f"{report.kind}: red ({', '.join(reasons) or 'no verdict'}{aside})"


def headline(report: Report) -> tuple[Status | None, str]:
    """The status that stands above a report and the line beside it; None where the report gives no verdict."""
    if report.verdict is None:
        return None, ""
    required = report.required or ("code",)
    words = conclusion(report, required)
    if green(report, required):
        return "passed", words
    states = {report.verdict.of(scope).status for scope in required}
    return next((status for status in ("failed", "undecided", "unmeasured") if status in states), "failed"), words


def _as_grave(finding: Finding, level: Level) -> bool:
    return LEVELS.index(finding.level) <= LEVELS.index(level)
