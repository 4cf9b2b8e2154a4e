"""What GitHub reads: annotations as workflow commands, and the summary of a step.

Workflow commands: `::error file=…,line=…,col=…,title=…::message`, with %, line breaks and, in properties, : and ,
written as percent codes (GitHub's documentation of workflow commands).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from compatfix.conclusion import blocking_findings
from compatfix.model import Finding, Report
from compatfix.report.markdown import to_markdown
from compatfix.report.paths import repository_path
from compatfix.report.plaintext import visible

KINDS = {"error": "error", "warning": "warning", "note": "notice"}
# A summary over 1 MiB is dropped whole.
SUMMARY_BYTES = 1 << 20


def runs_there(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a step of a GitHub workflow."""
    return environment.get("GITHUB_ACTIONS") == "true"


def commands(report: Report) -> Iterator[str]:
    """Workflow commands for scopes that failed, or had to pass and did not, and for every finding.

    What blocks comes first: GitHub shows ten of a kind.
    """
    required = report.required or ("code",)
    for entry in report.verdict.scopes if report.verdict is not None else ():
        needed = entry.scope in required
        if entry.status == "failed" or (needed and entry.status != "passed"):
            step = f" → {entry.next_step}" if entry.next_step else ""
            kind = "error" if needed else "warning"
            yield _command(kind, {"title": f"scope {entry.scope}: {entry.status}"}, entry.reason + step)
    blocking = {id(finding) for finding in blocking_findings(report)}
    for finding in sorted(report.findings, key=lambda f: id(f) not in blocking):
        yield _of_finding(report, finding, id(finding) in blocking)


def append_summary(report: Report, environment: Mapping[str, str] = os.environ) -> bool:
    """Appends the report in Markdown to the step's summary; False where there is none or it cannot be written."""
    name = environment.get("GITHUB_STEP_SUMMARY")
    if not name:
        return False
    data = to_markdown(report).encode("utf-8", "backslashreplace")
    try:
        path = Path(name)
        room = SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0)
        with path.open("ab") as file:
            file.write(data if len(data) <= room else _beginning(data, room))
    except OSError:
        return False
    return True


def _beginning(data: bytes, room: int) -> bytes:
    note = b"\n\n(cut: the whole report is in the report directory)\n"
    return data[: max(0, room - len(note))].rpartition(b"\n")[0] + note if room > len(note) else b""


def _of_finding(report: Report, finding: Finding, blocking: bool) -> str:
    properties: dict[str, object] = {}
    if finding.location is not None:
        properties["file"] = repository_path(report, finding.location)
        if finding.location.line is not None:
            properties["line"] = finding.location.line
        if finding.location.column is not None:
            properties["col"] = finding.location.column
    properties["title"] = f"{finding.code} {finding.level}" + (" (known)" if finding.known else "")
    kind = KINDS[finding.level] if not finding.known else "notice"
    message = finding.message + (f"\nfix: {finding.fix}" if finding.fix else "")
    return _command("error" if blocking else kind, properties, message)


def _command(kind: str, properties: Mapping[str, object], message: str) -> str:
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{kind} {listed}::{_data(message)}"


def _data(value: object) -> str:
    return visible(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: object) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
