"""Prompts of the user's own for a run on real weights: one a line, as text or as JSON. Read without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from compatfix.errors import UsageError

FIELDS = ("prompt", "text")
STDIN = "-"


def read_prompts(path: str) -> tuple[str, ...]:
    """The prompts in a file, or in standard input ("-"); blank lines are left out.

    A line that begins with a quotation mark is a JSON string, for prompts that hold line breaks; one that begins with a
    brace is a JSON object with the prompt as "prompt" or "text". Raises UsageError with the line's number.
    """
    prompts = []
    for number, line in enumerate(_content(path).splitlines(), start=1):
        if line.strip():
            prompts.append(_prompt(line.strip(), f"{path}:{number}" if path != STDIN else f"line {number}"))
    if not prompts:
        raise UsageError(f"no prompts in {path if path != STDIN else 'standard input'}: one a line is expected")
    return tuple(prompts)


def _content(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from error


def _prompt(line: str, where: str) -> str:
    if line[0] not in '"{':
        return line
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not valid JSON, as a line that begins with {line[0]} must be: {error}") from error
    if isinstance(value, dict):
        value = next((value[name] for name in FIELDS if name in value), None)
    if not isinstance(value, str) or not value:
        raise UsageError(f'{where}: no prompt; expected a JSON string, or an object with the text as "prompt"')
    return value
