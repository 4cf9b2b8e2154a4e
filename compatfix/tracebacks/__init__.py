"""Answers to a traceback: which known incompatibility it is, where it was raised, what fixes it. Needs no torch."""

from __future__ import annotations

from compatfix.tracebacks.recognise import Answered, Recognised, Unknown, answer
from compatfix.tracebacks.words import json_of, text_of

__all__ = ["Answered", "Recognised", "Unknown", "answer", "decoded", "json_of", "text_of"]

_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


def decoded(data: bytes) -> str:
    """The text of a log; shells on Windows write UTF-16, and nothing in a log is a reason to give up on it."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    return data.decode(encoding, errors="replace")
