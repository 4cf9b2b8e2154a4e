"""The fixes that everyone tries, kept to show what they lead to. No rule of the patcher, and never offered as one."""

from __future__ import annotations

from pathlib import Path

from compatfix.model import PatchPlan
from compatfix.rewrites.planning import plan_rules
from compatfix.rewrites.rules import RULES
from compatfix.rewrites.writing import write_copy

# What an error message asks for: no verified forward, and the compaction as published.
_CODES = {"CF101", "CF102", "CF103", "CF201", "CF203", "CF501", "CF601", "CF602"}


def plausible_fix(root_copy: Path) -> PatchPlan:
    """Patches a copy of a tree so that it runs without an exception on a hybrid, and is wrong.

    The edits are those of the real rules; the runtime that they call does what the installed library's messages say.
    """
    planned = plan_rules(Path(root_copy).resolve(), RULES, set(_CODES), Path(__file__).parent / "runtime", force=True)
    write_copy(planned)
    return planned
