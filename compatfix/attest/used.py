"""In the worker: which files were read. Standard library only; installed before torch is imported."""

from __future__ import annotations

import os
import site
import sys
from typing import Any

_read: set[str] = set()
_written: set[str] = set()
_MAPS = "/proc/self/maps"
_SYSTEM = ("/proc/", "/sys/", "/dev/")


def watch() -> None:
    """Notes every file that Python code opens from now on. Forks inherit what was noted before them."""
    sys.addaudithook(_note)


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or not args or not isinstance(args[0], (str, bytes)):
        return
    try:
        flags = args[2] if len(args) > 2 and isinstance(args[2], int) else 0
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        (_written if writes else _read).add(os.path.abspath(os.fsdecode(args[0])))
    except (ValueError, OSError):
        return


def files() -> list[str]:
    """Modules, native libraries and whatever else was opened for reading; not what this process wrote itself.

    Compiled files are left out: Python checks them against their sources and rewrites them.
    """
    found = {str(file) for file in (getattr(module, "__file__", None) for module in list(sys.modules.values())) if file}
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as maps:
            found |= {line.split(None, 5)[5].rstrip("\n") for line in maps if line.count("/")}
    except (OSError, IndexError):
        pass  # not Linux: modules and opened files are all that can be told
    found |= _read - _written
    return sorted(
        name for name in found if name.startswith("/") and not name.startswith(_SYSTEM) and "/__pycache__/" not in name
    )


def place() -> dict[str, Any]:
    """The interpreter: what it is and where it looks for modules."""
    return {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "version": sys.version,
        "path": [os.path.abspath(entry) for entry in sys.path],
        "user_site": site.getusersitepackages(),
    }
