"""`--if-changed` for the commands: what was asked, whether the last green verdict answers it, and the next one kept."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from compatfix import __version__
from compatfix.attest.fingerprint import Request
from compatfix.attest.ledger import Ledger
from compatfix.hub.place import Places
from compatfix.serial import to_plain
from compatfix.validate.options import ValidationOptions


def open_ledger(
    command: str,
    tree: Path,
    at: Places,
    report_dir: Path,
    settings: ValidationOptions,
    others: Mapping[str, Any],
) -> Ledger:
    """The ledger of a run. `others` are the options that the settings lack."""
    options = {
        "command": command,
        **asdict(settings),
        **others,
        "python": shutil.which(settings.python or sys.executable) or settings.python,
        "tool": f"{__version__} on {sys.executable}",
        "module path": sys.path,
    }
    plain = json.loads(json.dumps(to_plain(options)))
    commits = {part: (place.given, place.origin.commit) for part, place in at.from_hub.items() if place.origin}
    return Ledger(Request(tree, *at.paths, report_dir, plain, commits))


def answered(ledger: Ledger, asked: bool, quiet: bool) -> bool:
    """With --if-changed: tells whether the last verdict holds. Without an answer, a full run begins."""
    if asked:
        answer = ledger.answer()
        click.echo(answer.line, err=quiet)
        if answer.green:
            return True
    ledger.begin()
    return False
