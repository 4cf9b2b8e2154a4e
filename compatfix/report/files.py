"""Writes a report to disk: a directory per run, and a pointer to the newest."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from compatfix.errors import UsageError
from compatfix.model import Report
from compatfix.report.gitlab import to_codequality
from compatfix.report.html import to_html
from compatfix.report.junit import to_junit
from compatfix.report.markdown import to_markdown
from compatfix.report.reading import load_report, report_file
from compatfix.serial import to_finite_json


def write_report(report: Report, directory: Path) -> Path:
    """Writes the report in every form under `directory`/<name of the run> and names it in latest.txt.

    Returns the run's directory. Raises UsageError when the directory cannot be written.
    """
    stamp = re.sub(r"[^0-9T]", "", report.started)[:15] or "report"
    try:
        run = _fresh(directory, f"{stamp}-{report.kind}")
        for name, text in texts_of(report).items():
            # A path that is not UTF-8 has lone surrogates: spelled out, and in JSON still what they were.
            (run / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        pointer = directory / "latest.txt"
        draft = directory / f".latest-{os.getpid()}"
        draft.write_text(f"{run.name}\n", encoding="utf-8")
        draft.replace(pointer)
    except OSError as error:
        raise UsageError(f"cannot write the report under {directory}: {error.strerror or error}") from error
    return run


def check_writable(directory: Path) -> None:
    """Told before minutes are spent, and without leaving a directory behind."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    try:
        # Tried, since root may by its rights, and a file system may still refuse.
        tempfile.TemporaryDirectory(prefix=".compatfix-", dir=place).cleanup()
    except OSError as error:
        raise UsageError(f"cannot write reports under {directory}: {error.strerror or error}") from error


def write_again(place: Path) -> list[Path]:
    """Writes every form but report.json beside the report.json that `place` means; returns what was written."""
    source = report_file(place)
    written = []
    for name, text in texts_of(load_report(source)).items():
        if name != "report.json":
            written.append(source.parent / name)
            try:
                written[-1].write_text(text, encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                raise UsageError(f"cannot write {written[-1]}: {error.strerror or error}") from error
    return written


def texts_of(report: Report) -> dict[str, str]:
    """Every file of a run's directory by name."""
    return {
        "report.json": to_finite_json(report, indent=2) + "\n",
        "report.md": to_markdown(report),
        "report.html": to_html(report),
        "junit.xml": to_junit(report),
        "codequality.json": to_codequality(report),
    }


def _fresh(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        run = directory / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            run.mkdir()
        except FileExistsError:
            continue
        return run
    raise UsageError(f"{directory} holds a thousand reports of this second; remove some")
