"""Text that a model, a path or an exception chose, made fit to be shown: what cannot be seen is spelled out."""

from __future__ import annotations

import re

# Controls but tab and newline, lone surrogates, marks that turn the direction of text, and what XML 1.0 forbids.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)


def visible(text: object) -> str:
    r"""The text with each character that a page or an XML file cannot hold, or that a reader cannot see, as an escape.

    A carriage return becomes `\r`, an escape character `\x1b`, a lone surrogate `\udc80`. Valid in HTML and XML once
    the markup characters are escaped; never raises.
    """
    return _UNSEEN.sub(_spelled, str(text).replace("\r\n", "\n"))


def one_line(text: object) -> str:
    """The same on one line, with blanks run together."""
    return " ".join(visible(text).split())


def _spelled(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")
