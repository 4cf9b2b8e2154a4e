"""The one exception of the runtime: it refuses, with the reason, rather than produce wrong text."""

from __future__ import annotations


class RuntimeRefusal(RuntimeError):
    """The runtime will not go on; the message says what was found and what to do."""
