"""Findings that are known already: written down from one run, set aside in the next.

A known finding is shown as such and does not count. No baseline turns a scope green: a verdict is not a finding.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compatfix.errors import UsageError
from compatfix.model import Finding, Report
from compatfix.report.fingerprints import Entry, entries_of, fingerprint
from compatfix.serial import from_plain, to_json, to_plain

VERSION = 1


@dataclass(frozen=True)
class Baseline:
    """The findings of the run that wrote it. `baseline` is the version of this file's form."""

    entries: tuple[Entry, ...]
    baseline: int = VERSION


def baseline_text(report: Report) -> str:
    """The baseline that makes every finding of this report known."""
    return to_json(Baseline(entries_of(report.findings)), indent=2)


def load_baseline(path: Path) -> Baseline:
    """Raises: UsageError where there is no such file, or it is no baseline of a version that this compatfix knows."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the baseline {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"the baseline {path} is not JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"the baseline {path} is nested too deeply") from error
    version = data.get("baseline") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise UsageError(f"{path} is not a baseline (make one with `compatfix report baseline RUN > FILE`)")
    if version > VERSION:
        raise UsageError(f"the baseline {path} has version {version}, this compatfix knows {VERSION}")
    try:
        return from_plain(Baseline, data)
    except Exception as error:
        raise UsageError(f"{path} is not a baseline of version {version}: make a new one") from error


def with_baseline(report: Report, baseline: Baseline, name: str) -> Report:
    """The report with known findings marked, and a section "baseline" that tells entries that no longer occur.

    An entry makes as many findings known as there were when it was written; one more of the same is new.
    """
    left = Counter({entry.fingerprint: entry.count for entry in baseline.entries})
    findings = tuple(_known(finding, left) for finding in report.findings)
    gone = [to_plain(replace(e, count=left[e.fingerprint])) for e in baseline.entries if left[e.fingerprint] > 0]
    section: dict[str, Any] = {"file": name, "known": sum(finding.known for finding in findings), "gone": gone}
    return replace(report, findings=findings, sections={**report.sections, "baseline": section})


def _known(finding: Finding, left: Counter[str]) -> Finding:
    name = fingerprint(finding)
    if left[name] <= 0:
        return replace(finding, known=False)
    left[name] -= 1
    return replace(finding, known=True)
