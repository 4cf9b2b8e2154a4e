"""Errors meant for people: what is wrong, where, and what to do, in one line. They end a command with exit code 2."""

from __future__ import annotations


class UsageError(Exception):
    """Bad input or bad use; the message is shown as `error: …` without a traceback."""
