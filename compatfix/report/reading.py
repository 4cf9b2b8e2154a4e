"""Finds a report on disk and reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compatfix.errors import UsageError
from compatfix.model import SCHEMA_VERSION, Report
from compatfix.serial import from_plain


def load_report(place: str | Path) -> Report:
    """The report at `place`: a report.json, the directory of a run, or a directory of runs, whose newest it is then.

    Raises: UsageError where there is none, it is broken, or it is of a version that this compatfix does not know.
    """
    path = report_file(Path(place))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply to be a report") from error
    version = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise UsageError(f"{path} is not a report of compatfix: it has no schema version")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {version}, this compatfix knows {SCHEMA_VERSION}: use the version that wrote it"
        )
    try:
        return from_plain(Report, data)
    except Exception as error:
        raise UsageError(f"{path} is not a report of schema version {version}: {_first(error)}") from error


@contextmanager
def sections_of(*places: str | Path) -> Iterator[None]:
    """A report whose sections are not what their version says is bad input, whatever trips over it."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        named = " or ".join(str(place) for place in places)
        raise UsageError(f"{named} does not hold what a report of its version does ({_first(error)})") from error


def report_file(place: Path) -> Path:
    """The report.json that `place` means, or UsageError."""
    if place.is_file():
        return place
    if not place.is_dir():
        raise UsageError(f"{place} does not exist")
    if (place / "report.json").is_file():
        return place / "report.json"
    pointer = place / "latest.txt"
    if pointer.is_file():
        newest = place / pointer.read_text(encoding="utf-8", errors="replace").strip() / "report.json"
        if newest.is_file():
            return newest
        raise UsageError(f"{pointer} names {newest.parent.name!r}, which holds no report.json")
    raise UsageError(f"no report.json or latest.txt in {place} (give a run's directory or its report.json)")


def _first(error: Any) -> str:
    """The innermost reason of what the converter raises, which is a group."""
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
