"""Findings as GitLab's code quality report: a subset of Code Climate's JSON that a merge request shows by line."""

from __future__ import annotations

import json
from collections import Counter

from compatfix.model import Report
from compatfix.report.fingerprints import fingerprint
from compatfix.report.paths import repository_path

SEVERITIES = {"error": "critical", "warning": "minor", "note": "info"}


def to_codequality(report: Report) -> str:
    """The findings that have a place and are not known. Fingerprints are unique, as GitLab demands."""
    seen: Counter[str] = Counter()
    found = []
    for finding in report.findings:
        if finding.location is None or finding.known:
            continue
        name = fingerprint(finding)
        seen[name] += 1
        found.append(
            {
                "description": f"{finding.message}" + (f" (fix: {finding.fix})" if finding.fix else ""),
                "check_name": finding.code,
                "fingerprint": name if seen[name] == 1 else f"{name}-{seen[name]}",
                "severity": SEVERITIES[finding.level],
                "location": {
                    "path": repository_path(report, finding.location),
                    "lines": {"begin": finding.location.line or 1},
                },
            }
        )
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
