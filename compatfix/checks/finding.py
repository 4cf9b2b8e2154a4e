"""How a check says something: the level comes from the code's entry unless the check knows better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.codes import CODES
from compatfix.model import Evidence, Finding, Level

PATCH = "compatfix patch TREE, whose runtime handles it"


def found(
    code: str,
    message: str,
    evidence: Evidence,
    *,
    fix: str | None = None,
    level: Level | None = None,
    details: Mapping[str, Any] | None = None,
) -> Finding:
    return Finding(code, level or CODES[code].level, evidence, message, fix=fix, details=details or {})
