"""Pasted text to plain lines: without colours, boxes, and what loggers, launchers and containers put before a line.

Every step is linear in the text: patterns are anchored or bounded, and each line is looked at a fixed number of times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = "Traceback (most recent call last)"

_ESCAPES = re.compile(
    r"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]"  # colours and cursor movements
    r"|\x1b\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)"  # links and titles
    r"|\x1b[@-Z\\-_]"
    r"|(?:\\u001b|\\x1b|\\033|\^\[)\[[\d;]{0,20}m"  # written out, as in JSON logs
    r"|\[\d{1,3}(?:;\d{1,3}){0,5}m"  # what is left where the escape character was lost
)
_JSON_NEWLINE = re.compile(r"(?<!\\)\\n")
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL = re.compile(r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b(?:\s{0,10}\||:[\w.]{1,60}:|:| -)?[ ]{0,8}")
_TIME = re.compile(
    rf"\[?(?:\d{{2,4}}[-/]\d\d[-/]\d{{2,4}}|\d\d-\d\d|[A-Z][a-z]{{2}} {{1,2}}\d{{1,2}})[T ]{_CLOCK}\]?[ ]?"
    rf"|\[?{_CLOCK}\]?[ ]"
)
_SYSLOG = re.compile(r"[\w.-]{1,60} [\w./-]{1,60}\[\d{1,9}\]: ?")
_STREAM = re.compile(
    r"\[(?:rank|default)?\d{1,5}(?:,\d{1,5})?\](?:<std(?:err|out)>)?:[ ]?"  # torchrun, mpirun
    r"|\([\w.:/ -]{1,80} pid=\d{1,9}[^)\n]{0,80}\)[ ]?"  # ray, vLLM
    r"|\[(?:pod|container)/[\w./-]{1,200}\][ ]?"  # kubectl logs --prefix
    r"|(?!E )[A-Za-z][\w.-]{0,60} {0,30}\| "  # docker compose
    r"|\d{1,4}: (?= *(?:File \"|Traceback|\w+Error))"  # srun --label
)
_EDGE = "│┃║╎"
_LEFT_EDGE = re.compile(rf"\s{{0,80}}[{_EDGE}|]\s?")
_RULE = re.compile(r"[\s+|─━═╭╮╰╯┌┐└┘├┤╌-]{4,}")
_SOURCE_COLUMN = re.compile(r"(?<=\S)\s{2,}[\w./-]{1,80}\.py:\d{1,6}$")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " "})
_LEARNED = 8
_NARROWEST = 40
_END_OF_STRING = re.compile(r'(?<!\\)"')


@dataclass(frozen=True)
class Line:
    """One line as the program wrote it. `number` counts the lines of the pasted text from 1; `stream` tells apart what
    several processes wrote to one log; `boxed` is true inside a drawn frame; `full` where no line is wider, as
    in text that a terminal has cut."""

    number: int
    text: str
    stream: str
    boxed: bool
    full: bool


def clean(text: str) -> Iterator[Line]:
    """The lines of a pasted text that say something."""
    prefixes: list[re.Pattern[str]] = []
    raws = text.split("\n")
    cut_at = max(_NARROWEST, *(len(raw.rstrip("\r")) for raw in raws))
    for number, raw in enumerate(raws, start=1):
        for piece in _pieces(raw):
            line = _clean_line(piece, number, prefixes, cut_at)
            if line is not None:
                yield line


def _pieces(raw: str) -> list[str]:
    """Progress bars rewrite a line with carriage returns; JSON logs keep a whole traceback in one line."""
    if "\\n" in raw and HEADER in raw:
        *lines, last = _JSON_NEWLINE.split(raw)
        raw = "\n".join([*lines, _END_OF_STRING.split(last, maxsplit=1)[0]])
        raw = raw.replace('\\"', '"').replace("\\'", "'").replace("\\t", "    ")
    return raw.splitlines()


def _clean_line(text: str, number: int, prefixes: list[re.Pattern[str]], cut_at: int) -> Line | None:
    if not text or text.isspace():
        return None
    full = len(text) == cut_at
    if "\x1b" in text or "m" in text:
        text = _ESCAPES.sub("", text)
    if not text.isascii():
        text = text.translate(_QUOTES)
    text, stream = _without_prefix(text.rstrip(), prefixes)
    text, boxed = _without_box(text)
    if not text.isascii() or text[:1] in "+-| ":
        text = "" if _RULE.fullmatch(text) else text
    text = _SOURCE_COLUMN.sub("", text) if text.endswith(tuple("0123456789")) and "  " in text else text
    return Line(number, text, stream, boxed, full) if text.strip() else None


def _without_prefix(text: str, prefixes: list[re.Pattern[str]]) -> tuple[str, str]:
    """The line without times, levels, ranks, containers; the ranks and containers are its stream.

    A prefix of no known form is learned where it stands before a traceback's header: the lines below carry it too.
    """
    stream = ""
    for _ in range(6):
        found = _TIME.match(text) or _LEVEL.match(text)
        if found is None:
            found = _STREAM.match(text) or _SYSLOG.match(text)
            if found is None:
                break
            stream += found[0].strip()
        text = text[found.end() :]
    for prefix in prefixes:
        found = prefix.match(text)
        if found is not None:
            return text[found.end() :], stream
    at = text.find(HEADER)
    before = text[:at]
    if 0 < at <= 120 and before.strip(f" |+-─{_EDGE}") and not before.lstrip().startswith("E "):
        if len(prefixes) < _LEARNED:
            prefixes.append(re.compile(re.sub(r"\d+", r"\\d{1,20}", re.escape(before))))
        text = text[at:]
    return text, stream


def _without_box(text: str) -> tuple[str, bool]:
    boxed = False
    for _ in range(4):
        found = _LEFT_EDGE.match(text)
        if found is None:
            break
        boxed = boxed or found[0].strip() in _EDGE
        text = text[found.end() :]
    return (text.rstrip(_EDGE + " ") if boxed else text), boxed
