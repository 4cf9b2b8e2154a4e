"""The verdict that travels with a patched tree: what its runtime compares itself with when it starts.

It lies as attest.json in the tree's own copy of the runtime, one entry for each target, draft and kind of run, and
beside the report of each green run. The reader is compatfix/runtime/attest.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compatfix import __version__
from compatfix.attest.fingerprint import Request, Used
from compatfix.attest.state import TRAVELLING
from compatfix.conclusion import green
from compatfix.model import Report

SCHEMA = 2
FILE = Path(TRAVELLING).name
_BETWEEN = " | "


def leave(report: Report, request: Request, used: Used, run: Path) -> str | None:
    """After a green run: writes the verdict into `run`, and into the tree if that was judged as it lies on disk.

    A run that fails a scope, or leaves a required one undecided, takes every verdict of the same target and draft out
    of the tree, whatever it was made on. Returns a line if something could not be written.
    """
    if report.verdict is None:
        return None
    place = request.tree.resolve() / TRAVELLING
    pair = _pair(filter(None, (request.name("target"), request.name("draft"))))
    key = _BETWEEN.join([*pair, f"on {request.options.get('on', 'tiny')}"])
    try:
        if green(report, report.required) and used.observed:
            entry = _entry(report, used)
            _write(run / FILE, {key: entry})
            if request.options.get("patch") != "copy" and place.parent.is_dir():
                with _alone_in(place.parent):
                    _write(place, {**_kept(place), key: entry})
        elif _speaks_against(report) and place.exists():
            with _alone_in(place.parent):
                kept = _kept(place)
                left = {name: entry for name, entry in kept.items() if _pair(name.split(_BETWEEN)[:-1]) != pair}
                if left != kept:
                    _write(place, left)
    except OSError as error:
        return f"the verdict for the patched code was not written: {error.strerror or error}"
    return None


def _pair(names: Iterable[str]) -> list[str]:
    """A target and a draft however they were spelt; a name that is no path here stays a name."""
    return [os.path.realpath(name) if os.path.exists(name) else name for name in names]


def _speaks_against(report: Report) -> bool:
    scopes = report.verdict.scopes if report.verdict is not None else ()
    return any(s.status == "failed" or (s.status == "undecided" and s.scope in report.required) for s in scopes)


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Runs that end at the same time wait for each other. The lock is on the directory: nothing is left behind."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks; the file is replaced in one step there too
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _entry(report: Report, used: Used) -> dict[str, Any]:
    assert report.verdict is not None
    return {
        "time": report.started,
        "tool": __version__,
        "scopes": {scope.scope: scope.status for scope in report.verdict.scopes},
        "tree": {n: s for n, s in used.tree.items() if n.endswith((".py", ".so")) and isinstance(s, str)},
        "runs": list(used.observed),
    }


def _kept(place: Path) -> dict[str, Any]:
    """The verdicts in a tree; a file that cannot be read holds none."""
    try:
        saved = json.loads(place.read_text(encoding="utf-8"))
        verdicts = saved["verdicts"] if saved["schema"] == SCHEMA else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return dict(verdicts) if isinstance(verdicts, dict) else {}


def _write(place: Path, verdicts: Mapping[str, Any]) -> None:
    from compatfix.rewrites.writing import replace_file

    text = json.dumps({"schema": SCHEMA, "verdicts": verdicts}, indent=1, sort_keys=True) + "\n"
    replace_file(place, text.encode("utf-8", "surrogateescape"), None)
