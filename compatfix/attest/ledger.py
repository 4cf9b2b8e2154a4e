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
from compatfix.attest.state import written_by_tool
from compatfix.attest.travelling import leave
from compatfix.conclusion import green
from compatfix.errors import UsageError
from compatfix.model import Report
from compatfix.report.plaintext import one_line

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
        try:
            green, line = self._compared()
        except Exception as error:  # whatever a damaged file makes of it: then the run is made in full
            green, line = False, f"the last verdict cannot be read ({type(error).__name__}: {error})"
        return Answer(green, one_line(line))

    def begin(self) -> None:
        """Before a full run: what was green counts no more until this run is."""
        self._before = fingerprint.chosen(self._request)
        pointer = self._pointer()
        try:
            pointer.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot take back the last green verdict: {pointer}: {error.strerror or error}"
            ) from error

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
        root, reports = self._request.tree.resolve(), self._request.report_dir
        inside = [name for name in {*now["tree"], *self.used.tree} if not written_by_tool(root / name, reports)]
        return [f"{name} changed" for name in sorted(inside) if now["tree"].get(name) != self.used.tree.get(name)]

    def _compared(self) -> tuple[bool, str]:
        """Raises whatever a damaged file makes it raise."""
        saved = self._saved()
        if saved is None:
            return False, "no green verdict of this tree, target and draft yet"
        if saved["schema"] != SCHEMA:
            return False, f"the last verdict was written by another version of the tool (schema {saved['schema']})"
        when, passed, where = (saved["verdict"][name] for name in ("time", "passed", "report"))
        if not isinstance(passed, list) or not passed:
            raise ValueError(f"no scope passed in it: {passed!r}")
        different = list(fingerprint.differences(saved, fingerprint.now_of(saved, self._request)))
        if different:
            more = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
            return False, f"changed since {when}: {'; '.join(different[:_SHOWN])}{more}"
        return True, f"unchanged since {when}: {', '.join(f'{scope} passed' for scope in passed)} (report: {where})"

    def _saved(self) -> Any:
        """The last fingerprint for these options; else the newest for others; None where there is none."""
        pointer = self._pointer()
        pointers = (
            [pointer]
            if pointer.exists()
            else sorted(pointer.parent.glob(f"{self._subject()}-*"), key=lambda path: path.stat().st_mtime_ns)
        )
        if not pointers:
            return None
        place = self._request.report_dir / pointers[-1].read_text(encoding="utf-8").strip() / FILE
        return json.loads(place.read_text(encoding="utf-8", errors="surrogateescape"))

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
