"""The report as JUnit XML: a test case per scope, per measured check and per finding, for what shows test results.

A case fails only where the report is red for the same reason; what was not measured is skipped, with what would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from compatfix.conclusion import blocking_findings
from compatfix.model import Finding, Report, ScopeVerdict
from compatfix.report.plaintext import visible

Outcome = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """One test case; `reason` is empty where it passed and there is nothing to say."""

    name: str
    outcome: Outcome
    reason: str = ""


def to_junit(report: Report) -> str:
    """The XML document. Valid whatever the texts in the report are."""
    suites = [(name, cases) for name, cases in _suites(report) if cases]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    everything = [case for _, cases in suites for case in cases]
    seconds = f"{report.seconds:.3f}"
    lines.append(f"<testsuites name={_a(f'compatfix {report.kind}')} {_counts(everything)} time={_a(seconds)}>")
    for name, cases in suites:
        lines.append(f"  <testsuite name={_a(name)} {_counts(cases)} timestamp={_a(report.started)}>")
        lines += [f"    {_case(f'compatfix.{name}', case)}" for case in cases]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _suites(report: Report) -> Iterator[tuple[str, list[Case]]]:
    if report.verdict is not None:
        required = report.required or ("code",)
        yield "scopes", [_scope(entry, entry.scope in required) for entry in report.verdict.scopes]
    yield "checks", list(_checks(report.sections))
    blocking = {id(finding) for finding in blocking_findings(report)}
    yield "findings", [_finding(finding, id(finding) in blocking) for finding in report.findings]


def _scope(entry: ScopeVerdict, required: bool) -> Case:
    reason = f"{entry.reason} → {entry.next_step}" if entry.next_step else entry.reason
    if entry.status == "passed":
        return Case(entry.scope, "passed", reason)
    # What had to pass and was not even measured is no skipped test; what failed and had not to pass keeps nobody.
    aside = ", not required" if entry.status == "failed" and not required else ""
    return Case(entry.scope, "failure" if required else "skipped", f"{entry.status}{aside}: {reason}")


def _checks(sections: Mapping[str, Any]) -> Iterator[Case]:
    for tally in (sections.get("losslessness") or {}).get("modes", ()):
        yield _tally(tally)
    for fault in sections.get("faults") or ():
        name = f"planted fault {fault['name']} is caught"
        if not fault["applicable"]:
            yield Case(name, "skipped", f"does not apply: {fault.get('reason') or 'not on this model'}")
        elif fault["caught"]:
            yield Case(name, "passed", f"by {fault['by']}")
        else:
            yield Case(name, "failure", f"not seen: {fault['what']}")
    for section in ("bf16", "slice", "weights"):
        for row in (sections.get(section) or {}).get("modes", ()):
            yield _compared(section, row, sections[section]["noise"])
    for row in (sections.get("sampling") or {}).get("modes", ()):
        yield _sampling(row)


def _sampling(row: Mapping[str, Any]) -> Case:
    name = f"{row['mode']}, sampling: the target's chances are kept"
    outcomes: dict[str, Outcome] = {"same": "passed", "different": "failure", "raised": "error"}
    told = f"{row['status']} after {row['tokens']} tokens" + (
        "" if row["p"] is None else f" (p at most {row['p']:.2g})"
    )
    return Case(name, outcomes.get(row["status"], "skipped"), told)


def _tally(tally: Mapping[str, Any]) -> Case:
    name = f"{tally['mode']}, {tally['profile']}: texts equal plain decoding"
    told = f"{tally['same']} of {tally['planned']} texts"
    if tally["error"] is not None:
        return Case(name, "error", f"{tally['error']['type']}: {tally['error']['message']}")
    if tally["same"] == tally["planned"]:
        return Case(name, "passed", told)
    if tally["run"] == tally["same"]:
        return Case(name, "skipped", f"{told}; {tally['planned'] - tally['run']} were not run")
    return Case(name, "failure", told)


def _compared(section: str, row: Mapping[str, Any], noise: float) -> Case:
    name = f"{row['mode']} on {section}: differing texts are rounding"
    if row["error"] is not None:
        return Case(name, "error", f"{row['error']['type']}: {row['error']['message']}")
    kinds = [difference["kind"] for difference in row["differences"]]
    told = f"{row['same']} of {row['run']} texts equal, {kinds.count('rounding')} rounded, "
    told += f"{kinds.count('corruption')} corrupted; noise {noise:.2g}"
    return Case(name, "failure" if "corruption" in kinds else "passed", told)


def _finding(finding: Finding, blocking: bool) -> Case:
    place = f" {finding.location}" if finding.location else ""
    name = f"{finding.code}{place}: {finding.message}"
    reason = f"{finding.level}, {finding.evidence}: {finding.message}" + (
        f" (fix: {finding.fix})" if finding.fix else ""
    )
    if blocking:
        return Case(name, "failure", reason)
    return Case(name, "skipped", f"known: {reason}") if finding.known else Case(name, "passed", reason)


def _counts(cases: Sequence[Case]) -> str:
    numbers = {"tests": len(cases)}
    for outcome, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        numbers[name] = sum(case.outcome == outcome for case in cases)
    return " ".join(f'{name}="{count}"' for name, count in numbers.items())


def _case(group: str, case: Case) -> str:
    head = f"<testcase classname={_a(group)} name={_a(case.name)}"
    if case.outcome == "passed":
        told = f"<system-out>{escape(visible(case.reason))}</system-out>" if case.reason else ""
        return f"{head}>{told}</testcase>"
    first = visible(case.reason).partition("\n")[0]
    body = "" if case.outcome == "skipped" else escape(visible(case.reason))
    return f"{head}><{case.outcome} message={_a(first)}>{body}</{case.outcome}></testcase>"


def _a(text: object) -> str:
    """A quoted attribute; line breaks are kept, which XML would level to blanks."""
    return quoteattr(visible(text), {"\n": "&#10;", "\t": "&#9;"})
