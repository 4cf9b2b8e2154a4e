"""What a user wrote for a model: a path, or a hub id with its revision. Reads no disk and no network."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from compatfix.errors import UsageError

FORM = "ORGANISATION/NAME[@REVISION]"
LONGEST = 96
COMMIT = re.compile(r"[0-9a-f]{40}")
_PART = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")
_NOT_IN_A_REVISION = re.compile(r"[\s\x00-\x1f\x7f~^:?*\[\\]|\.\.|@\{|//|^[/-]|[/.]$")


@dataclass(frozen=True)
class HubId:
    """A repository of the hub and the revision asked for: a branch, a tag or a commit."""

    repo: str
    revision: str = "main"

    @property
    def is_commit(self) -> bool:
        return COMMIT.fullmatch(self.revision) is not None

    @property
    def download(self) -> str:
        """The command that fetches all of it."""
        revision = ["--revision", self.revision] if self.revision != "main" else []
        return shlex.join(["hf", "download", self.repo, *revision])


def hub_id(text: str) -> HubId | None:
    """The hub id that `text` is; None where its form is a path's. UsageError where it is neither."""
    repo, at, revision = text.partition("@")
    if text.startswith(("/", ".", "~")) or text.endswith("/") or repo.count("/") > 1 or not (at or "/" in repo):
        return None
    fault = _fault(repo) or (_fault_of_revision(revision) if at else None)
    if fault is not None:
        shown = text if text.isprintable() else ascii(text)
        raise UsageError(f"no such directory, and {shown} is no hub id ({FORM}): {fault}")
    return HubId(repo, revision if at else "main")


def _fault(repo: str) -> str | None:
    organisation, slash, name = repo.partition("/")
    if not slash:
        return "the organisation is missing"
    for part in (organisation, name):
        if not part:
            return "one of its parts is empty"
        if _PART.fullmatch(part) is None:
            return f"{part!r} is not made of letters, digits, '_', and '-' or '.' between them"
        if "--" in part or ".." in part:
            return f"{part!r} has '--' or '..'"
    if name.endswith(".git"):
        return "a name does not end in .git"
    return f"it is longer than {LONGEST} characters" if len(repo) > LONGEST else None


def _fault_of_revision(revision: str) -> str | None:
    if not revision:
        return "the revision after @ is empty"
    return f"{revision!r} is not a revision" if _NOT_IN_A_REVISION.search(revision) else None
