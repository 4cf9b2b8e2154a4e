"""A plan in plain text lines, and the pages of the rules."""

from __future__ import annotations

from compatfix.codes import lookup
from compatfix.errors import UsageError
from compatfix.model import PatchPlan
from compatfix.rewrites.rule import Rule
from compatfix.rewrites.rules import RULES

_WIDTH = 100


def render_plan(plan: PatchPlan) -> list[str]:
    """Each fix, what could not be fixed and why, and what is copied."""
    lines: list[str] = []
    for fix in sorted(plan.fixes, key=lambda fix: (fix.location.path, fix.location.line or 0)):
        lines.append(f"{fix.code} {fix.location}  {_short(fix.before)}  ->  {_short(fix.after)}")
    for finding in plan.unfixed:
        lines.append(f"{finding.code} {finding.location}  not fixed: {finding.message}")
    if plan.copied:
        directory = plan.copied[0].split("/")[0]
        lines.append(f"copied: {directory}/ ({len(plan.copied)} files)")
    if plan.ignored:
        listed = ", ".join(f"{code} ({count})" for code, count in plan.ignored.items())
        lines.append(f"left out by --select or --ignore: {listed}")
    if plan.suppressed:
        listed = ", ".join(f"{code} ({count})" for code, count in plan.suppressed.items())
        lines.append(f"exempt by a comment in the code: {listed}")
    edited = sum(1 for change in plan.changes if change.path not in plan.copied)
    lines.append(f"{len(plan.fixes)} fixes in {edited} of {plan.files_seen} files, {len(plan.unfixed)} places left")
    return lines


def all_rules() -> list[type[Rule]]:
    """Every rule, in the order of their codes."""
    return sorted(RULES, key=lambda rule: rule.code)


def page(code: str) -> str:
    """The documentation of a code or a rule's name, as markdown."""
    entry = lookup(code)
    if entry is None:
        raise UsageError(f"no code {code} (compatfix rules lists them)")
    head = f"# {entry.code} {entry.name}\n\n{entry.title} ({entry.level})\n\n"
    for rule in RULES:
        if rule.code == entry.code:
            fix = "Fixed by `compatfix patch`." if rule.INVALID else "Found by `compatfix patch`, not fixed."
            return f"{head}{rule.page()}\n\n{fix}\nSwitch off in one place: `# compatfix: ignore[{entry.code}]`\n"
    sections = (("What it finds", entry.what), ("Why it matters", entry.why), ("What to do", entry.do))
    return head + "\n\n".join(f"## {title}\n{text}" for title, text in sections if text) + "\n"


def _short(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
