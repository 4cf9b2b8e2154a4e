"""Which files of a tree are looked at."""

from __future__ import annotations

import os
from pathlib import Path

from compatfix.errors import UsageError
from compatfix.rewrites.flow.evaluate import RUNTIME

_NOT_SOURCE = {"__pycache__", "node_modules", "site-packages", "venv", "env", RUNTIME}


def python_files(root: Path) -> list[str]:
    """Python files below `root`, relative and posix, in order; links, hidden and installed directories left out."""
    if not root.is_dir():
        raise UsageError(f"no directory {root} (give the root of the code to patch)")
    found: list[str] = []
    for directory, names, files in os.walk(root):
        here = Path(directory)
        names[:] = sorted(name for name in names if _is_source(here / name))
        for name in sorted(files):
            path = here / name
            if name.endswith((".py", ".pyw")) and not name.startswith(".") and not path.is_symlink():
                found.append(path.relative_to(root).as_posix())
    if not found:
        raise UsageError(f"no Python files in {root} (is this the root of the code?)")
    return found


def _is_source(directory: Path) -> bool:
    hidden = directory.name.startswith(".") or directory.name in _NOT_SOURCE
    return not hidden and not directory.is_symlink() and not (directory / "pyvenv.cfg").exists()
