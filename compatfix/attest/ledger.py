"""Where the fingerprints of green verdicts are kept, and the question of `--if-changed`: does the last one still hold?

A fingerprint lies as verdict.json in the directory of its run; a small file under .green in the report directory says
which run is the last green one of a tree, a target, a draft and the options.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compatfix.attest import fingerprint
from compatfix.attest.fingerprint import SCHEMA, Request, Used
from compatfix.attest.travelling import leave
from compatfix.conclusion import green
from compatfix.model import Report

FILE = "verdict.json"
POINTERS = ".green"
_SHOWN = 3


@dataclass(frozen=True)
class Answer:
    """`green`: the last verdict still holds. `line` says so, or what differs."""

    green: bool
    line: str


class Ledger:
    """One run's dealings with the last green verdict. Make it before anything is measured."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._began_ns = time.time_ns()
        self._before: dict[str, Any] | None = None
        self.used = Used()

    def answer(self) -> Answer:
        """Whether everything is as it was at the last green verdict. Reads files and starts nothing."""
        saved = self._saved()
        if isinstance(saved, str):
            return Answer(False, saved)
        try:
            now = fingerprint.now_of(saved, self._request)
            different = list(fingerprint.differences(saved, now))
        except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            return Answer(False, f"the last verdict cannot be compared ({type(error).__name__}: {error})")
        verdict = saved["verdict"]
        if different:
            more = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
            return Answer(False, f"changed since {verdict['time']}: {'; '.join(different[:_SHOWN])}{more}")
        passed = ", ".join(f"{scope} passed" for scope in verdict["passed"])
        return Answer(True, f"unchanged since {verdict['time']}: {passed} (report: {verdict['report']})")

    def begin(self) -> None:
        """Before a full run: what was green counts no more until this run is."""
        self._before = fingerprint.chosen(self._request)
        self._pointer().unlink(missing_ok=True)

    def keep(self, report: Report, run: Path) -> str | None:
        """Writes the fingerprint of a green run, and of no other. Returns why it was not written, where it was not."""
        if self._before is None or report.verdict is None or not green(report, report.required):
            return None
        request = self._request
        now = fingerprint.chosen(request)
        # A tree that was patched in place is what was judged, not what was there before.
        expected = {**self._before, "tree": now["tree"] if request.options.get("patch") else self._before["tree"]}
        judged = self._judged(now)
        different = [*fingerprint.differences({**expected, **_NOTHING}, {**now, **_NOTHING}), *judged]
        state = {**now, **fingerprint.learned(request, self.used)}
        different += [f"{name} changed" for name in fingerprint.moved(state["files"], self._began_ns)]
        different += [f"{name} came" for name in fingerprint.young(state["directories"], self._began_ns)]
        if different:
            return f"not kept for --if-changed: {different[0]} while the run went on"
        passed = [scope.scope for scope in report.verdict.scopes if scope.status == "passed"]
        verdict = {"time": report.started, "passed": passed, "report": str(run)}
        text = json.dumps({"schema": SCHEMA, "verdict": verdict, **state}, indent=1, sort_keys=True)
        try:
            (run / FILE).write_text(text + "\n", encoding="utf-8", errors="surrogateescape")
            pointer = self._pointer()
            pointer.parent.mkdir(exist_ok=True)
            draft = pointer.with_name(f".{pointer.name}-{os.getpid()}")
            draft.write_text(run.name, encoding="utf-8")
            draft.replace(pointer)
        except OSError as error:
            return f"not kept for --if-changed: {error.strerror or error}"
        return None

    def leave(self, report: Report, run: Path) -> str | None:
        """Puts the verdict where the patched code finds it; see travelling.py."""
        return leave(report, self._request, self.used, run)

    def _judged(self, now: dict[str, Any]) -> list[str]:
        """Where the tree on disk was judged, it must still be that."""
        if self._request.options.get("patch") == "copy":
            if self._before is None or self._before["tree"] == now["tree"]:
                return []
            return ["the tree changed"]
        inside = [name for name in {*now["tree"], *self.used.tree} if not self._in_reports(name)]
        return [f"{name} changed" for name in sorted(inside) if now["tree"].get(name) != self.used.tree.get(name)]

    def _in_reports(self, name: str) -> bool:
        path = self._request.tree.resolve() / name
        return path.is_relative_to(self._request.report_dir.resolve())

    def _saved(self) -> dict[str, Any] | str:
        """The last fingerprint for these options; else the newest for others; else why there is none."""
        pointer = self._pointer()
        try:
            pointers = (
                [pointer]
                if pointer.exists()
                else sorted(pointer.parent.glob(f"{self._subject()}-*"), key=lambda path: path.stat().st_mtime_ns)
            )
            if not pointers:
                return "no green verdict of this tree, target and draft yet"
            place = self._request.report_dir / pointers[-1].read_text(encoding="utf-8").strip() / FILE
            saved = json.loads(place.read_text(encoding="utf-8", errors="surrogateescape"))
            if saved["schema"] != SCHEMA:
                return f"the last verdict was written by another version of the tool (schema {saved['schema']})"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"the last verdict cannot be read ({type(error).__name__}: {error})"
        found: dict[str, Any] = saved
        return found

    def _subject(self) -> str:
        request = self._request
        models = [
            request.name(part) if part in request.hub else os.path.realpath(getattr(request, part) or "")
            for part in ("target", "draft")
            if getattr(request, part)
        ]
        return _short([os.path.realpath(request.tree), *models, request.options["command"]])

    def _pointer(self) -> Path:
        return self._request.report_dir / POINTERS / f"{self._subject()}-{_short(self._request.options)}"


# Sections that only a run fills: nothing to compare before and after it.
_NOTHING: dict[str, Any] = {"files": {}, "directories": {}}


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
