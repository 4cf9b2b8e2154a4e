"""The patcher: rules that find what breaks and edit it, plans that say so first, and writing that can be undone."""

from __future__ import annotations

from compatfix.rewrites.diffs import diff
from compatfix.rewrites.listing import all_rules, page, render_plan
from compatfix.rewrites.planning import plan
from compatfix.rewrites.plausible import plausible_fix
from compatfix.rewrites.rule import Case, Rule
from compatfix.rewrites.writing import Applied, apply, copy_tree, patch_copy, undo, write_copy

__all__ = [
    "Applied",
    "Case",
    "Rule",
    "all_rules",
    "apply",
    "copy_tree",
    "diff",
    "page",
    "patch_copy",
    "plan",
    "plausible_fix",
    "render_plan",
    "undo",
    "write_copy",
]
