"""Names findings so that the next run finds the same one again, wherever its line has moved to."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compatfix.model import Finding

_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Entry:
    """Findings that are the same but for their place: how many there are, and one of their messages for people."""

    fingerprint: str
    code: str
    path: str
    message: str
    count: int = 1


def fingerprint(finding: Finding) -> str:
    """16 hexadecimal digits of the code, the path in the tree, and the context with its numbers and blanks levelled.

    The context is the message, and the source line where the finding has one; line numbers are left out.
    """
    path = finding.location.path if finding.location else ""
    parts = (finding.code, path, _levelled(finding.message), _levelled(_source(finding)))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def entries_of(findings: Iterable[Finding]) -> tuple[Entry, ...]:
    """One entry per fingerprint, in the order of code and path."""
    found = list(findings)
    counts = Counter(map(fingerprint, found))
    first = {fingerprint(finding): finding for finding in reversed(found)}
    made = (
        Entry(name, f.code, f.location.path if f.location else "", f.message, counts[name]) for name, f in first.items()
    )
    return tuple(sorted(made, key=lambda entry: (entry.code, entry.path, entry.message, entry.fingerprint)))


def _source(finding: Finding) -> str:
    place: Any = finding.details.get("place")
    return str(finding.details.get("source") or (place.get("source") if isinstance(place, dict) else None) or "")


def _levelled(text: str) -> str:
    return _NUMBERS.sub("0", " ".join(text.split()))
