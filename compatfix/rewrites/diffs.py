"""A plan as a unified diff that `git apply` takes."""

from __future__ import annotations

import difflib

from compatfix.model import FileChange, PatchPlan

_EMPTY = "e69de29"  # git's name for a file without content


def diff(plan: PatchPlan) -> str:
    """Bytes that are not UTF-8 come out as surrogate escapes: write the text with errors="surrogateescape"."""
    return "".join(_file(change) for change in plan.changes)


def _file(change: FileChange) -> str:
    path = change.path
    head = f"diff --git a/{path} b/{path}\n"
    if change.before is None:
        head += "new file mode 100644\n"
        if not change.after:
            return head + f"index 0000000..{_EMPTY}\n"
    before, after = _lines(change.before or b""), _lines(change.after)
    source = "/dev/null" if change.before is None else f"a/{path}"
    return head + "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, source, f"b/{path}")
    )


def _lines(data: bytes) -> list[str]:
    """Lines end at \\n only: a lone carriage return is part of its line, as git sees it."""
    text = data.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
