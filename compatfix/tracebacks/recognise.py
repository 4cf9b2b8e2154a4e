"""Which known errors a text holds, first cause first, and which exceptions in it are not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from compatfix.tracebacks.cleaning import clean
from compatfix.tracebacks.known import Known
from compatfix.tracebacks.passages import Frame, Said, Stream, streams
from compatfix.tracebacks.table_cache import CACHE
from compatfix.tracebacks.table_devices import DEVICES
from compatfix.tracebacks.table_structure import STRUCTURE

TABLE: tuple[Known, ...] = (*CACHE, *STRUCTURE, *DEVICES)

_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python\d|[/\\]Lib[/\\]|^<frozen|[/\\]src[/\\]transformers[/\\]"
    r"|[/\\]transformers[/\\](?:models|utils|generation|integrations|\w+_utils\w*\.py)|[/\\]torch[/\\](?:nn|utils|_\w+)"
    r"|compatfix_runtime|^<string>"
)
_TRANSFORMERS = re.compile(r"(?:^|[/\\])(transformers[/\\].*)$")
_CAMEL = r"(?:\w{1,60}\.){0,8}[A-Z]\w{0,80}"
_STATED = re.compile(
    rf"(?:^|[\s(:|])(?<!raise )({_CAMEL}(?:Error|Exception|Exit|Refusal|Interrupt|ExceptionGroup))"
    r"(?:: |:$|$|\()(.{0,300})"
)
_SUMMARY = re.compile(r"(?:FAILED|ERROR) \S{1,300}::")
_RAISED_IN_SOURCE = re.compile(
    r"(?:raise[\w.]{1,80}|warn|warning|warning_once|error|info|print)\([frbu]{0,2}[\"']{1,3}$"
)
_TYPE = re.compile(r"\b([A-Z]\w{0,80}(?:Error|Exception|Warning|Refusal))(?:: |\([\"'])")
_SHOWN = 220


@dataclass(frozen=True)
class Recognised:
    """A known error as it occurs in a text.

    `said` is its line; `lines` the numbers of the lines on which it begins, `user` the deepest frame outside installed
    packages and `library` the deepest frame inside transformers, where the text has them.
    """

    known: Known
    what: str
    do: str
    then: str
    said: str
    exception: str | None
    user: Frame | None
    library: Frame | None
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Unknown:
    """An exception that no entry of the table describes. `hint` says what would make it recognisable, if anything."""

    exception: str
    message: str
    user: Frame | None
    line: int
    hint: str = ""


@dataclass(frozen=True)
class Answered:
    """What a text holds, in the order in which it was said; cosmetic warnings come after everything real."""

    recognised: tuple[Recognised, ...]
    unknown: tuple[Unknown, ...]


def answer(text: str) -> Answered:
    """Recognises every known error in a pasted text: tracebacks in any common layout, logs, or a last line alone."""
    found: list[Recognised] = []
    unknown: list[Unknown] = []
    for stream in streams(clean(text)):
        hits, doubtful = _hits(stream)
        found.extend(recognised for _, _, recognised in hits)
        covered = {index for first, last, _ in hits for index in range(first, last + 1)}
        unknown.extend(_unknown(stream, covered, doubtful))
    return Answered(_merged(found), _distinct(unknown))


def user_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The deepest frame that is not in an installed package."""
    return next((frame for frame in reversed(frames) if not _LIBRARY.search(frame.file)), None)


def _hits(stream: Stream) -> tuple[list[tuple[int, int, Recognised]], dict[int, Known]]:
    """Matches as (first line, last line, what), and lines that would match if their traceback were there."""
    hits: list[tuple[int, int, Recognised]] = []
    doubtful: dict[int, Known] = {}
    taken: set[int] = set()
    for known in TABLE:
        if known.squeezed_needle not in stream.squeezed:
            continue
        for match in known.pattern.finditer(stream.squeezed):
            first, last = stream.at(match.start()), stream.at(max(match.start(), match.end() - 1))
            before = stream.squeezed[max(0, match.start() - 100) : match.start()]
            if match.end() in taken or _RAISED_IN_SOURCE.search(before):
                continue
            frames = _frames(stream.said[first])
            if known.place is not None and not _at(known.place, frames):
                if not frames:
                    doubtful.setdefault(first, known)
                continue
            taken.add(match.end())
            hits.append((first, last, _recognised(known, match, stream.said[first : last + 1], frames)))
    return sorted(hits, key=lambda hit: hit[0]), doubtful


def _frames(said: Said) -> tuple[Frame, ...]:
    return said.passage.above(said.depth) if said.near else ()


def _at(place: re.Pattern[str], frames: tuple[Frame, ...]) -> bool:
    return any(place.search(f"{frame.file} {frame.function} {frame.code}") for frame in frames[-2:])


def _recognised(known: Known, match: re.Match[str], said: tuple[Said, ...], frames: tuple[Frame, ...]) -> Recognised:
    groups = {name: value or "" for name, value in match.groupdict().items()}
    typed = _TYPE.search(said[0].line.text)
    library = next((frame for frame in reversed(frames) if _TRANSFORMERS.search(frame.file)), None)
    return Recognised(
        known=known,
        what=known.what.format(**groups),
        do=known.do.format(**groups),
        then=known.then.format(**groups),
        said=_short(" ".join(part.line.text.strip() for part in said)),
        exception=typed[1] if typed else None,
        user=user_frame(frames) or _user_of_chain(said[0], frames),
        library=library and replace(library, file=_TRANSFORMERS.search(library.file)[1]),  # type: ignore[index]
        lines=(said[0].line.number,),
    )


def _user_of_chain(said: Said, frames: tuple[Frame, ...]) -> Frame | None:
    """Where an error was raised and caught inside a library, the user's frame is in the traceback that follows it."""
    following = said.passage.following if frames else None
    for _ in range(4):
        if following is None or following.frames:
            break
        following = following.following
    return user_frame(tuple(following.frames)) if following else None


def _unknown(stream: Stream, covered: set[int], doubtful: dict[int, Known]) -> Iterator[Unknown]:
    for index, said in enumerate(stream.said):
        text = said.line.text
        if index in covered or _SUMMARY.match(text):
            continue
        stated = _STATED.search(text) if "E" in text or "R" in text else None
        hint = ""
        if index in doubtful:
            hint = "alone it fits many faults: paste the whole traceback, with its File lines"
        if stated is not None:
            exception, message = stated[1], stated[2].strip()
        elif index in doubtful:
            exception, message = "", text.strip()
        else:
            continue
        frames = _frames(said)
        user = user_frame(frames)
        if index + 1 in covered and stream.said[index + 1].passage is said.passage:
            continue  # its message goes on with the recognised one
        if covered and ((not message and said.passage.chained) or (said.passage.led_on and frames and user is None)):
            continue  # a link inside a library of the chain that holds the recognised error
        yield Unknown(exception, _short(message), user, said.line.number, hint)


def _merged(found: list[Recognised]) -> tuple[Recognised, ...]:
    """One entry for each error and reading of it, cosmetic ones last; what repeats is counted, the best-placed kept."""
    merged: dict[tuple[str, str], Recognised] = {}
    for one in sorted(found, key=lambda recognised: recognised.lines[0]):
        key = (one.known.key, one.what)
        if key not in merged:
            merged[key] = one
            continue
        kept = merged[key]
        better = one if kept.user is None and one.user is not None else kept
        merged[key] = replace(better, lines=kept.lines + one.lines)
    return tuple(sorted(merged.values(), key=lambda recognised: not recognised.known.real))


def _distinct(unknown: list[Unknown]) -> tuple[Unknown, ...]:
    seen: dict[tuple[str, str], Unknown] = {}
    for one in sorted(unknown, key=lambda each: each.line):
        seen.setdefault((one.exception, one.message), one)
    return tuple(seen.values())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
