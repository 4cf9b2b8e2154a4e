"""Paths as the host of a repository knows them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from compatfix.model import Location, Report


def repository_path(report: Report, location: Location, base: Path | None = None) -> str:
    """The path from `base` (default: the working directory) of a place that a finding names relative to its tree.

    A tree outside `base` keeps its absolute path, and a path that no file can have (a NUL in it) stays as it is.
    """
    tree = report.subject.get("tree")
    if not tree:
        return location.path
    base = Path.cwd() if base is None else base
    full = PurePosixPath(str(tree)) / location.path
    if full.is_absolute() and "\0" not in str(full):
        absolute, start = Path(full).resolve(), base.resolve()
        return absolute.relative_to(start).as_posix() if absolute.is_relative_to(start) else str(full)
    return str(full)
