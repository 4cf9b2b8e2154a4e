"""Turns the measured sections of a report into plain tables, for every renderer that shows tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table of strings; `note` is one line below it, `brief` tables are shown without -v."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    brief: bool = True


Build = Callable[[Any], Sequence[Table]]


def tables(report: Any) -> list[Table]:
    return []
