"""A table of strings, for every renderer that shows tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of strings; `note` is one line below it, `brief` tables are shown without -v."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    brief: bool = True
