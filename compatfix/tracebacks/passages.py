"""Clean lines to what was said and where: messages apart from the source lines that tracebacks quote around them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from compatfix.tracebacks.cleaning import HEADER, Line

_PLAIN = re.compile(r'(?:> )?\s{0,400}File "([^"\n]{1,500})", line (\d{1,9})(?:, in (.{1,200}))?')
_UNQUOTED = re.compile(r"\s{0,20}File ([~\w./\\:<>-]{1,400}\.py):(\d{1,9}) in ([\w.<>]{1,100})")
_NOTEBOOK = re.compile(
    r"(?:File )?([~\w./\\:<>-]{1,400}\.py|<ipython-input[\w-]{1,60}>):(\d{1,9}), in ([\w.<>]{1,100})"
)
_NOTEBOOK_UNNUMBERED = re.compile(r"([~\w./\\:<>-]{1,400}\.py|<ipython-input[\w-]{1,60}>) in ([\w.<>]{1,100})(?:\(|$)")
_CELL = re.compile(r"(?:Cell|Input) In ?\[(\d{1,9})\](?:, line (\d{1,9})|, in (\S{1,100}))")
_RICH = re.compile(r"(\S.{0,400}\.py):(\d{1,9}) in(?: (\S{1,200}))?\s{0,200}$")
_PYTEST = re.compile(r"(\S{1,400}\.py):(\d{1,9}):(?: in (\S{1,200})| [\w.]{1,80})?$")
_LAYOUTS = (
    ("plain", _PLAIN),
    ("plain", _UNQUOTED),
    ("pytest", _PYTEST),
    ("notebook", _NOTEBOOK),
    ("rich", _RICH),
)
_BOUNDARY = re.compile(
    rf".{{0,200}}{re.escape(HEADER)}|During handling of the above exception|The above exception was the direct cause"
    r"|_{3,} .{1,200} _{3,}$|={3,} (?:FAILURES|ERRORS|short test summary|test session).{0,200} ={3,}$"
    r"|\s{0,80}\+-?\+?-{6,} \d{1,5} -{6,}"
)
_GUTTER = re.compile(r"\s{0,20}(?:(?:-{1,8}>|❱|>)\s{0,8})?\d{1,9}(?:\s|$)")
_MARKED = re.compile(r"\s{0,20}(?:-{1,8}>|❱|>)\s{0,8}(\d{1,9})?\s?(?:[│|]\s{0,200}){0,20}(.{1,300})")
_MARKS = re.compile(r"[\s~^─]+")
_VALUES = re.compile(r"[\s│├]{0,400}└|\w{1,80} = ")
_STATEMENT = re.compile(rf"(?:\w{{1,60}}\.){{0,8}}[A-Z]\w{{0,80}}(?::|$)|{re.escape(HEADER)}")
_DEFINITION = re.compile(r"\s{4,200}(?:async )?def (\w{1,100})")
_CUT_PATH = re.compile(r"(?:[/~]|[A-Za-z]:\\)\S{20,500}$")
_NAME = re.compile(r"[\w.<>]{1,100}")
_CUT_FRAME = re.compile(r'\s{0,400}File "[^"\n]{1,500}$')
_FRAMES_KEPT = 60
# A message may be wrapped over as many lines; what stands further below a traceback is no part of it.
_REACH = 16


@dataclass(frozen=True)
class Frame:
    """One place on the stack; `code` is its source line where the text quotes it."""

    file: str
    line: int
    function: str
    code: str


@dataclass
class Passage:
    """One traceback, or the lines between two; `chained` where it was raised while another was handled, `led_on` where
    another was raised while it was; `following` is that one.

    pytest names a place after its source: `pending` is the line that it marked, `inside` the function that it showed.
    """

    frames: list[Frame] = field(default_factory=list)
    dropped: int = 0
    style: str = ""
    pending: str = ""
    inside: str = ""
    chained: bool = False
    led_on: bool = False
    following: Passage | None = None

    def above(self, depth: int) -> tuple[Frame, ...]:
        """The first `depth` frames, as far as they were kept; pytest names a frame's place below its message."""
        end = len(self.frames) if self.style == "pytest" else max(0, depth - self.dropped)
        return tuple(self.frames[:end])


@dataclass(frozen=True)
class Said:
    """A line that is a message or part of one. `depth` is how many frames of its passage stand above it; `near` whether
    it follows them closely."""

    line: Line
    passage: Passage
    depth: int
    near: bool


@dataclass(frozen=True)
class Stream:
    """What one process said. `squeezed` is all of it without spaces, back-ticks and backslashes, so that a message is
    found however it was wrapped; `starts[i]` is where `said[i]` begins in it."""

    said: tuple[Said, ...]
    squeezed: str
    starts: tuple[int, ...]

    def at(self, offset: int) -> int:
        """The index in `said` of the line at `offset` of `squeezed`."""
        return bisect_right(self.starts, offset) - 1


def squeeze(text: str) -> str:
    """The text without white space, back-ticks and backslashes."""
    return "".join(text.split()).replace("`", "").replace("\\", "")


def streams(lines: Iterable[Line]) -> list[Stream]:
    """What each process of a log said, in the order in which they first speak."""
    readers: dict[str, _Reader] = {}
    for line in lines:
        if line.stream not in readers:
            readers[line.stream] = _Reader()
        readers[line.stream].read(line)
    return [reader.stream() for reader in readers.values()]


class _Reader:
    """Reads the lines of one process in order."""

    def __init__(self) -> None:
        self.passage = Passage()
        self.said: list[Said] = []
        self.indent: int | None = None  # of the frame line whose source lines are being read
        self.since = 0
        self.cut: Line | None = None  # a frame line that the terminal's width cut in two

    def read(self, line: Line) -> None:
        held, self.cut = self.cut, None
        if held is not None and (line.text[0] == " " or _STATEMENT.match(line.text)):
            self._read(held)
        elif held is not None:
            line = replace(line, text=held.text + line.text, full=False)
        if self._is_cut(line):
            self.cut = line
        else:
            self._read(line)

    def _is_cut(self, line: Line) -> bool:
        """Whether the line is the first half of one that says where a frame is."""
        if line.boxed:
            return _CUT_PATH.match(line.text) is not None
        return "File" in line.text and bool(_CUT_FRAME.match(line.text) or (line.full and _PLAIN.match(line.text)))

    def _read(self, line: Line) -> None:
        text = line.text
        if _BOUNDARY.match(text):
            style = "pytest" if text[0] in "_=" else ""
            # The sentence between two chained tracebacks is a boundary of its own, before that of the second's header.
            between = self.passage.chained and not self.passage.frames
            self.passage.led_on = text.startswith(("During", "The above"))
            chained = between or text.startswith(("During", "The above"))
            before, self.passage = self.passage, Passage(style=style, chained=chained)
            before.following = self.passage if chained else None
            self.indent, self.since = None, 0
            return
        if self._read_frame(line) or self._is_source(line):
            return
        self.indent = None
        stripped = text[1:].lstrip() if text.startswith("E  ") else text
        if text.startswith("E  "):
            self.passage.style = "pytest"
        self.since += 1
        self.said.append(
            Said(
                replace(line, text=stripped),
                self.passage,
                self.passage.dropped + len(self.passage.frames),
                self.since <= _REACH,
            )
        )

    def stream(self) -> Stream:
        starts, pieces, offset = [], [], 0
        for said in self.said:
            piece = squeeze(said.line.text)
            starts.append(offset)
            pieces.append(piece)
            offset += len(piece)
        return Stream(tuple(self.said), "".join(pieces), tuple(starts))

    def _read_frame(self, line: Line) -> bool:
        text = line.text
        if "line " in text or ".py" in text or "In" in text or "ipython" in text:
            for style, pattern in _LAYOUTS:
                found = pattern.match(text)
                if found is not None:
                    self._add(Frame(found[1].strip(), int(found[2]), found[3] or "", ""), style, text)
                    return True
            found = _CELL.match(text)
            if found is not None:
                self._add(Frame(f"cell {found[1]}", int(found[2] or 0), found[3] or "", ""), "notebook", text)
                return True
            found = _NOTEBOOK_UNNUMBERED.match(text)
            if found is not None:
                self._add(Frame(found[1], 0, found[2], ""), "notebook", text)
                return True
        return False

    def _add(self, frame: Frame, style: str, text: str) -> None:
        if style == "pytest":
            frame = replace(frame, code=self.passage.pending, function=frame.function or self.passage.inside)
        self.passage.style, self.passage.pending, self.passage.inside = style, "", ""
        self.passage.frames.append(frame)
        surplus = len(self.passage.frames) - _FRAMES_KEPT
        if surplus > 0:
            del self.passage.frames[:surplus]
            self.passage.dropped += surplus
        self.indent, self.since = len(text) - len(text.lstrip()), 0

    def _is_source(self, line: Line) -> bool:
        """Whether the line is quoted source, a marker under it, or a value shown beside it."""
        text, style = line.text, self.passage.style
        if _MARKS.fullmatch(text):
            return True
        if style == "pytest":
            if text.startswith(">  "):
                self.passage.pending = text[1:].strip()
                return True
            defined = _DEFINITION.match(text)
            if defined is not None:
                self.passage.inside = defined[1]
            if not text.startswith("    "):
                return False
            if self.passage.frames and self.since == 0:
                self._quote(text.strip())
            return True
        if not self.passage.frames or self.indent is None:
            return False
        if style == "plain":
            if _VALUES.match(text):
                return True
            if len(text) - len(text.lstrip()) > self.indent:
                self._quote(text.strip())
                return True
            return False
        if _GUTTER.match(text) or (line.boxed and _VALUES.match(text)):
            marked = _MARKED.match(text)
            if marked is not None:
                self._quote(marked[2].strip(), int(marked[1] or 0))
            return True
        last = self.passage.frames[-1]
        if line.boxed and not last.function and _NAME.fullmatch(text.strip()):
            self.passage.frames[-1] = replace(last, function=text.strip())
        # A long source line is wrapped inside the frame that is drawn around it.
        return line.boxed or text.lstrip().startswith("(...)")

    def _quote(self, code: str, line: int = 0) -> None:
        last = self.passage.frames[-1]
        if not last.code:
            self.passage.frames[-1] = replace(last, line=last.line or line, code=code)
