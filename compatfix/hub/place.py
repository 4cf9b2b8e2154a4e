"""Where a model lies and what it was called: the plain data that passes on from the rim."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from compatfix.errors import UsageError
from compatfix.memory_plan import gigabytes
from compatfix.model import Report, Statement

_SHOWN = 5


@dataclass(frozen=True)
class Origin:
    """What is known of a model from the hub.

    `weights`: "headers" where only those of the weight files were fetched, "cached" where the files lie in the hub's
    own cache. `weight_files` are those that the library would load, `bytes` their size; `pickles` and `code` name
    files that are never fetched. `offline`: the revision is what it was when it was last asked for.
    """

    repo: str
    revision: str
    commit: str
    endpoint: str
    weights: Literal["headers", "cached"]
    weight_files: tuple[str, ...] = ()
    bytes: int = 0
    pickles: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    offline: bool = False


@dataclass(frozen=True)
class ModelPlace:
    """A model as it was `given`, and the directory (or config file) where it is read. `origin`: only from the hub."""

    given: str
    path: str
    origin: Origin | None = None


@dataclass(frozen=True)
class Places:
    """Target and draft of one run. Results and errors speak of them by the names that they were given by."""

    target: ModelPlace
    draft: ModelPlace | None = None

    @property
    def paths(self) -> tuple[str, str | None]:
        return self.target.path, None if self.draft is None else self.draft.path

    @property
    def options(self) -> str:
        """As they were given, for a command line."""
        draft = [] if self.draft is None else ["--draft", self.draft.given]
        return shlex.join(["--target", self.target.given, *draft])

    @property
    def from_hub(self) -> dict[str, ModelPlace]:
        """By what they are in a report's subject."""
        both = {"target": self.target, "draft": self.draft}
        return {part: place for part, place in both.items() if place is not None and place.origin is not None}

    def named(self, report: Report) -> Report:
        """The report under these names, and with what is known of those from the hub."""
        subject, lines, findings = dict(report.subject), list[Statement](), report.findings
        for part, place in self.from_hub.items():
            assert place.origin is not None
            subject |= {part: place.given, f"{part} commit": place.origin.commit}
            lines += _lines(part, place.origin)
            findings = tuple(replace(f, message=f.message.replace(place.path, place.given)) for f in findings)
        return replace(report, subject=subject, statements=(*lines, *report.statements), findings=findings)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Inside, a UsageError that speaks of a copy's place speaks of the hub id instead."""
        try:
            yield
        except UsageError as error:
            message = str(error)
            for place in self.from_hub.values():
                message = message.replace(place.path, place.given)
            raise UsageError(message) from error


def _lines(part: str, origin: Origin) -> Iterator[Statement]:
    topic = "hub"
    at = f" at {origin.revision}" if origin.revision != origin.commit else ""
    where = f"commit {origin.commit} of {origin.endpoint}"
    text = f"{part} {origin.repo}{at} is {where}"
    if at and origin.offline:
        text = f"{part} {origin.repo}{at} was {where} when that was last asked"
    value = {"id": origin.repo, "revision": origin.revision, "commit": origin.commit, "endpoint": origin.endpoint}
    yield Statement(topic, part, text, "read", {**value, "offline": origin.offline})
    count = len(origin.weight_files)
    size = f"{gigabytes(origin.bytes)} in {count} {'file' if count == 1 else 'files'}"
    told = {"files": list(origin.weight_files), "bytes": origin.bytes, "weights": origin.weights}
    if not count:
        yield Statement(topic, f"{part} weights", f"the {part} has no weight files there", "read", told)
    elif origin.weights == "cached":
        yield Statement(
            topic, f"{part} weights", f"weights of the {part} ({size}) are in the hub's cache", "read", told
        )
    elif set(origin.weight_files) <= set(origin.pickles):
        text = f"weights of the {part} ({size}) were not fetched; of pickles only names and sizes are known"
        yield Statement(topic, f"{part} weights", text, "read", told)
    else:
        text = f"weights of the {part} ({size}) were not fetched, only their headers"
        yield Statement(topic, f"{part} weights", text, "read", told)
    if origin.pickles:
        text = f"pickles of the {part}, named and never fetched: {_some(origin.pickles)}"
        yield Statement(topic, f"{part} pickles", text, "read", list(origin.pickles))
    if origin.code:
        text = f"code of the {part}, neither fetched nor run: {_some(origin.code)}"
        yield Statement(topic, f"{part} code", text, "read", list(origin.code))


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def is_there(text: str | Path) -> bool:
    """Whether something lies at this path."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False
