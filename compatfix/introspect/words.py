"""Exceptions and messages of a library, said briefly. Torch-free."""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    """Type and first line; the second too where the first only announces it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {text}"


def brief(message: str, limit: int = 90) -> str:
    """The first sentence of a message, or as much of it as fits."""
    sentence = message.split(". ")[0]
    return sentence if len(sentence) <= limit else sentence[: limit - 1].rstrip() + "…"
