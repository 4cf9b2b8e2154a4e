"""The plain data that passes between the stages: findings, answers, verdicts, reports.

Every statement carries its evidence, so that a reader can tell what was seen from what was read and from what was
merely assumed. Nothing here imports torch, and everything serialises to JSON (`compatfix.serial`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Evidence = Literal["measured", "read", "assumed"]
Level = Literal["error", "warning", "note"]
Status = Literal["passed", "failed", "undecided", "unmeasured"]
Scope = Literal["code", "kernels", "weights", "draft", "speed"]

SCHEMA_VERSION = 1
SCOPES: tuple[Scope, ...] = ("code", "kernels", "weights", "draft", "speed")
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Statement:
    """One line of a profile: what is so, and how it is known.

    `topic` groups lines ("structure", "cache", "hidden states", "draft", "memory", "environment", "tiny model");
    `key` is stable for machines; `text` is the sentence for people; `value` is JSON.
    """

    topic: str
    key: str
    text: str
    evidence: Evidence
    value: Any = None


@dataclass(frozen=True)
class Answer:
    """What a probe found: the question, the sentence that answers it, the numbers, and whether it is good news.

    `ok` is None where the question has no good or bad answer. An exception inside a probe is an answer too: then `ok`
    is False and `error` holds the exception's type and first line.
    """

    probe: str
    question: str
    text: str
    ok: bool | None
    numbers: Mapping[str, float] = field(default_factory=dict)
    value: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Location:
    """A place in a file: `line` and `column` count from 1, columns in characters."""

    path: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.path] + [str(n) for n in (self.line, self.column) if n is not None]
        return ":".join(parts)


@dataclass(frozen=True)
class Finding:
    """Something that stands in the way, or that a reader should know.

    `fix` is a command or an edit that was checked to work, or None. `code` is an entry of `compatfix.codes.CODES`.
    `known` findings stand in a baseline: they are shown and do not count.
    """

    code: str
    level: Level
    evidence: Evidence
    message: str
    location: Location | None = None
    fix: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    known: bool = False


@dataclass(frozen=True)
class Fix:
    """One edit that a rule proposes: `before` and `after` are the source of the edited expression or statement."""

    code: str
    location: Location
    before: str
    after: str
    safe: bool = True


@dataclass(frozen=True)
class FileChange:
    """The whole change of one file, as bytes in and bytes out; `None` before means that the file is new."""

    path: str
    before: bytes | None
    after: bytes
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class PatchPlan:
    """What `patch` would do to a tree: edits by file, what it cannot fix and why, and the files it copies.

    `root` is the absolute path of the tree; paths in changes and findings are relative to it. `ignored` counts fixes
    that were found and left out by `--select`/`--ignore`, by code, `suppressed` those exempt by a comment in the code.
    """

    root: str
    changes: tuple[FileChange, ...] = ()
    unfixed: tuple[Finding, ...] = ()
    copied: tuple[str, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    suppressed: Mapping[str, int] = field(default_factory=dict)
    files_seen: int = 0

    @property
    def fixes(self) -> tuple[Fix, ...]:
        return tuple(fix for change in self.changes for fix in change.fixes)

    @property
    def empty(self) -> bool:
        return not self.changes


@dataclass(frozen=True)
class ScopeVerdict:
    """The verdict of one scope. `reason` says why; `next_step` is what would measure or mend it."""

    scope: Scope
    status: Status
    reason: str
    next_step: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Verdicts by scope, in the order of `SCOPES`. The word "passed" never stands without its scope."""

    scopes: tuple[ScopeVerdict, ...]

    def of(self, scope: Scope) -> ScopeVerdict:
        """The verdict of one scope; unmeasured where the verdict says nothing of it."""
        found = (verdict for verdict in self.scopes if verdict.scope == scope)
        return next(found, unmeasured(scope, "the verdict says nothing of it", "gate again"))

    def green(self, required: tuple[Scope, ...]) -> bool:
        return all(self.of(scope).status == "passed" for scope in required)


def unmeasured(scope: Scope, reason: str, next_step: str) -> ScopeVerdict:
    return ScopeVerdict(scope, "unmeasured", reason, next_step)


@dataclass(frozen=True)
class Report:
    """Everything that one run found, ready for any renderer.

    `kind` is "inspect", "patch", "validate", "gate", "diagnose" or "doctor". `sections` holds the measured tables by
    name ("losslessness", "faults", "bf16", "benchmark", "ladder", …) as JSON; their shapes are described in
    docs/report-schema.md. `required` are the scopes that had to pass; findings of level `fail_on` or graver count.
    """

    kind: str
    subject: Mapping[str, Any]
    statements: tuple[Statement, ...] = ()
    answers: tuple[Answer, ...] = ()
    findings: tuple[Finding, ...] = ()
    verdict: Verdict | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    next_step: str | None = None
    version: str = ""
    started: str = ""
    seconds: float = 0.0
    schema: int = SCHEMA_VERSION
    required: tuple[Scope, ...] = ()
    fail_on: Level = "error"
