"""Plans a patch: reads a tree, runs the rules, and says what would change. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compatfix.codes import CODES, lookup
from compatfix.errors import UsageError
from compatfix.model import Finding, Location, PatchPlan
from compatfix.rewrites.engine import rewrite
from compatfix.rewrites.files import python_files
from compatfix.rewrites.rule import Rule
from compatfix.rewrites.rules import RULES
from compatfix.rewrites.runtime_copy import own_runtime, plan_copy


def plan(
    root: Path,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    runtime: Path | None = None,
    force: bool = False,
) -> PatchPlan:
    """What patching the tree at `root` would do.

    Args: select and ignore take codes or names of rules; an empty select means all. `runtime` is the directory to copy
    as `compatfix_runtime` (default: this installation's); `force` overwrites a copy that was edited.
    Raises: UsageError where there is no Python file, or for a code that no rule has.
    """
    root = Path(root).resolve()
    selected = _codes(select) if select else {rule.code for rule in RULES}
    selected -= _codes(ignore)
    return plan_rules(root, RULES, selected, runtime if runtime is not None else own_runtime(), force=force)


def plan_rules(
    root: Path, rules: Sequence[type[Rule]], selected: set[str], runtime: Path, *, force: bool = False
) -> PatchPlan:
    paths = python_files(root)
    sources: dict[str, bytes] = {}
    unfixed: list[Finding] = []
    for path in paths:
        try:
            sources[path] = (root / path).read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            unfixed.append(Finding("CF908", CODES["CF908"].level, "read", f"not read: {reason}", Location(path)))
    package = root.name if "__init__.py" in sources else ""
    result = rewrite(sources, rules, selected, package)
    unfixed.extend(result.unfixed)
    changes = sorted(result.changes, key=lambda change: change.path)
    copied: tuple[str, ...] = ()
    if result.imports_runtime:
        copy = plan_copy(root, runtime, force=force)
        copied = tuple(change.path for change in copy.changes)
        changes.extend(copy.changes)
        if copy.refused is not None:
            unfixed.append(copy.refused)
    unfixed.sort(key=lambda f: (f.location.path, f.location.line or 0, f.code) if f.location else ("", 0, f.code))
    return PatchPlan(
        root=str(root),
        changes=tuple(changes),
        unfixed=tuple(unfixed),
        copied=copied,
        ignored=dict(sorted(result.ignored.items())),
        suppressed=dict(sorted(result.suppressed.items())),
        files_seen=len(paths),
    )


def _codes(names: Sequence[str]) -> set[str]:
    """Codes of rules, from codes or names."""
    known = {rule.code for rule in RULES}
    found: set[str] = set()
    for name in names:
        entry = lookup(name)
        if entry is None or entry.code not in known:
            raise UsageError(f"no rule {name} (compatfix rules lists them)")
        found.add(entry.code)
    return found
