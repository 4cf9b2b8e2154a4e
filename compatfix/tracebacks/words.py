"""What `compatfix explain` prints about a pasted text: at most a screen, or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from compatfix.codes import CODES
from compatfix.repros import available
from compatfix.tracebacks.passages import Frame
from compatfix.tracebacks.recognise import Answered, Recognised, Unknown

_WIDTH = 100
_IN_FULL = 2
_INDENT = 12


def text_of(answered: Answered, *, verbose: bool = False) -> str:
    """The answer for people; everything in full only where `verbose`."""
    if not answered.recognised:
        return _not_recognised(answered.unknown) + "\n"
    full = len(answered.recognised) if verbose else _IN_FULL
    lines: list[str] = []
    for one in answered.recognised[:full]:
        if one.known.real or verbose or len(answered.recognised) == 1:
            lines += [*_entry(one), ""]
        else:
            lines.append(_line(one))
    lines += [_line(one) for one in answered.recognised[full:]]
    lines += [f"not recognised: {_unknown(one)}" for one in answered.unknown[: None if verbose else 3]]
    surplus = len(answered.unknown) - 3
    if surplus > 0 and not verbose:
        lines.append(f"not recognised: {surplus} more with -v")
    return "\n".join(lines).rstrip("\n") + "\n"


def json_of(answered: Answered) -> str:
    """The answer for machines."""
    return json.dumps(
        {
            "recognised": [_plain(one) for one in answered.recognised],
            "unknown": [
                {
                    "exception": one.exception or None,
                    "message": one.message,
                    "where": _plain_frame(one.user),
                    "line": one.line,
                    "hint": one.hint or None,
                }
                for one in answered.unknown
            ],
        },
        indent=2,
        ensure_ascii=False,
    )


def _entry(one: Recognised) -> Iterator[str]:
    known = one.known
    yield from textwrap.wrap(f"{_head(one)}: {one.what}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield from _field("says", one.said)
    for label, text in _where(one):
        yield from _field(label, text)
    yield from _field("versions", f"{known.versions} ({_source(one)})")
    for label, text in _advice(one):
        yield from _field(label, text)
    if one.then:
        yield from _field("then", one.then)
    if known.code:
        yield from _field("more", f"compatfix explain {known.code}")
        if known.code in available():
            yield from _field("", f"compatfix repro {known.code}")


def _head(one: Recognised) -> str:
    name = f"{one.known.code} {CODES[one.known.code].name}" if one.known.code else one.known.key
    times = f", {len(one.lines)} times" if len(one.lines) > 1 else ""
    return f"{name} ({'real' if one.known.real else 'cosmetic'}{times})"


def _line(one: Recognised) -> str:
    place = f" [{_place(one.user)}]" if one.user else ""
    fix = f"; fix: {_command(one)}" if one.known.real and one.known.select else ""
    return f"{_head(one)}{place}: {one.what}{fix}"


def _where(one: Recognised) -> Iterator[tuple[str, str]]:
    if one.user:
        yield "where", _place(one.user) + (f": {one.user.code}" if one.user.code else "")
        if "transformers_modules" in one.user.file:
            yield (
                "",
                "this is transformers' cached copy of a checkpoint's code: editing the original does not change it",
            )
    if one.library:
        yield "" if one.user else "where", f"raised in {_place(one.library)}"
    if not one.user and not one.library:
        yield "where", f"line {one.lines[0]} of the text; no traceback stands above it"


def _advice(one: Recognised) -> Iterator[tuple[str, str]]:
    """The rule first; where a rule exists, advice by hand comes after it."""
    if one.known.select:
        yield "fix", _fix(one)
    if one.do:
        yield "" if one.known.select else "do", one.do


def _fix(one: Recognised) -> str:
    note = "   (rollback, forward and compaction belong together)" if one.known.select == "CF2" else ""
    return _command(one) + note


def _command(one: Recognised) -> str:
    return f"compatfix patch --select {one.known.select} TREE"


def _source(one: Recognised) -> str:
    return "measured" if one.known.source == "measured" else "read from public notes"


def _place(frame: Frame) -> str:
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.file}{line}" + (f" in {frame.function}" if frame.function else "")


def _field(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {label}".ljust(_INDENT),
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _unknown(one: Unknown) -> str:
    parts = [part for part in (one.exception, one.message) if part]
    place = f" ({_place(one.user)})" if one.user else ""
    hint = f"; {one.hint}" if one.hint else ""
    return ": ".join(parts) + place + hint


def _not_recognised(unknown: tuple[Unknown, ...]) -> str:
    if not unknown:
        return (
            "not recognised: no exception and no known warning in this text; give the whole log, or ask "
            "`compatfix inspect MODEL` what stands in the way of a target"
        )
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return (
        f"not recognised: {_unknown(unknown[0])}{more}; `compatfix inspect MODEL` says what stands in the way of a "
        "target; if it is none of that, report it with the whole traceback"
    )


def _plain(one: Recognised) -> dict[str, Any]:
    known = one.known
    return {
        "key": known.key,
        "code": known.code,
        "name": CODES[known.code].name if known.code else None,
        "real": known.real,
        "exception": one.exception,
        "what": one.what,
        "said": one.said,
        "where": _plain_frame(one.user),
        "raised_in": _plain_frame(one.library),
        "versions": known.versions,
        "source": known.source,
        "fix": _command(one) if known.select else None,
        "do": one.do or None,
        "then": one.then or None,
        "count": len(one.lines),
        "lines": list(one.lines[:20]),
    }


def _plain_frame(frame: Frame | None) -> dict[str, Any] | None:
    if frame is None:
        return None
    return {"file": frame.file, "line": frame.line or None, "function": frame.function, "code": frame.code}
