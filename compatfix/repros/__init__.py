"""Short scripts that show one fault each with torch and transformers alone; `compatfix repro CODE` prints them.

Each is a file beside this one, named after its code, and needs nothing of compatfix: it makes a tiny random model, says
in one line what it saw, and exits 1 where the fault shows, 0 where this transformers does not have it, 2 where it
cannot tell. They are read as text here and never imported.
"""

from __future__ import annotations

from pathlib import Path

from compatfix.codes import lookup
from compatfix.errors import UsageError

_HERE = Path(__file__).parent


def available() -> tuple[str, ...]:
    """The codes that have a script, in order."""
    return tuple(sorted(path.stem for path in _HERE.glob("CF*.py")))


def script(code: str) -> str:
    """The source of a code's script; `code` is a number or a name. Raises UsageError where there is none."""
    entry = lookup(code)
    if entry is None:
        raise UsageError(f"no code {code} (compatfix rules lists them)")
    if entry.code not in available():
        raise UsageError(f"no script for {entry.code}; there is one for {', '.join(available())}")
    return (_HERE / f"{entry.code}.py").read_text(encoding="utf-8")
