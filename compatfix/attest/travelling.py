"""The verdict that travels with a patched tree: what its runtime compares itself with when it starts.

It lies as attest.json in the tree's own copy of the runtime, one entry for each target, draft and kind of run, and
beside the report of each green run. The reader is compatfix/runtime/attest.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatfix import __version__
from compatfix.attest.fingerprint import Request, Used
from compatfix.attest.state import TRAVELLING
from compatfix.conclusion import green
from compatfix.model import Report

SCHEMA = 1
FILE = Path(TRAVELLING).name


def leave(report: Report, request: Request, used: Used, run: Path) -> str | None:
    """After a green run: writes the verdict into `run`, and into the tree if that was judged as it lies on disk.

    A run that fails a scope takes its own earlier verdict out of the tree. Returns a line if it could not be written.
    """
    if report.verdict is None:
        return None
    place = None if request.options.get("patch") == "copy" else request.tree.resolve() / TRAVELLING
    key = " | ".join(
        filter(None, [request.name("target"), request.name("draft"), f"on {request.options.get('on', 'tiny')}"])
    )
    try:
        if green(report, report.required) and used.observed:
            entry = _entry(report, used)
            _write(run / FILE, {key: entry})
            if place is not None and place.parent.is_dir():
                _write(place, {**_kept(place), key: entry})
        elif place is not None and any(scope.status == "failed" for scope in report.verdict.scopes):
            kept = _kept(place)
            if key in kept:
                del kept[key]
                _write(place, kept)
    except OSError as error:
        return f"the verdict for the patched code was not written: {error.strerror or error}"
    return None


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
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(verdicts) if isinstance(verdicts, dict) else {}


def _write(place: Path, verdicts: Mapping[str, Any]) -> None:
    from compatfix.rewrites.writing import replace_file

    text = json.dumps({"schema": SCHEMA, "verdicts": verdicts}, indent=1, sort_keys=True) + "\n"
    replace_file(place, text.encode("utf-8", "surrogateescape"), None)
