"""What a report says of the entry points that were run: which, how they were found, how their parameters were read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from compatfix.model import Statement


def entry_statement(ran: Mapping[str, Any]) -> Statement:
    """Entry points were run, so this is measured; what only the reader of a signature would know is told with it."""
    entries = ran.get("entry_points") or []
    told = ", ".join(filter(None, (ran.get("chain"), ran.get("tree"), ran.get("loop"))))
    notes = [note for entry in entries if (note := _note(entry))]
    mapped = f" ({'; '.join(notes)})" if notes else ""
    text = f"{told}{mapped}, with the draft {ran['draft_class']}"
    return Statement("what was run", "entry points", text, "measured", entries)


def _note(entry: Mapping[str, Any]) -> str:
    """Empty for an entry point that was found by its signature under the published names."""
    usual = (("draft", "model"),)
    read = [f"{name} is {role}" for role, name in entry["roles"].items() if name != role and (role, name) not in usual]
    given = [f"{name} = {json.dumps(value)}" for name, value in entry["literals"].items()]
    how = ["named with --entry"] if entry["named"] else []
    place = [f"ids in {entry['result']['field']}"] if entry["result"]["field"] else []
    without = ["ids without the prompt"] if entry["result"]["only_new"] else []
    parts = [*how, *read, *given, *place, *without]
    return f"{entry['entry'].rpartition(':')[2]}: {', '.join(parts)}" if parts else ""
