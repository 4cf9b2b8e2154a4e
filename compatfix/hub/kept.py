"""Directories that stand for a commit of the hub: links to small files, and holes in the place of weights.

`compatfix/hub` in the user's cache directory has one for each hub, repository and commit, and what each revision was
when it was last asked for. A directory is written aside and renamed, so it is there as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from compatfix.checkpoint.directory import HEADERS_ONLY
from compatfix.hub.client import Listing
from compatfix.hub.names import COMMIT, HubId

SCHEMA = 1
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Weights here are holes behind true headers.\n"


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compatfix" / "hub"


@dataclass(frozen=True)
class Shelf:
    """The place of one repository of one hub."""

    root: Path
    endpoint: str
    asked: HubId

    @property
    def base(self) -> Path:
        hub = hashlib.sha256(self.endpoint.encode()).hexdigest()[:12]
        return self.root / hub / self.asked.repo.replace("/", "--")

    def directory(self, commit: str) -> Path:
        return self.base / commit

    def remember(self, commit: str) -> None:
        """Which commit the revision is now."""
        self._tag()
        ref = self._ref()
        ref.parent.mkdir(parents=True, exist_ok=True)
        aside = ref.with_name(f".{os.getpid()}-{ref.name}")
        aside.write_text(commit, encoding="utf-8")
        aside.replace(ref)

    def remembered(self) -> tuple[str, int] | None:
        """Which commit the revision was when it was last asked for, and when that was; None where it never was."""
        try:
            commit = self._ref().read_text(encoding="utf-8").strip()
            when = self._ref().stat().st_mtime_ns
        except (OSError, ValueError):
            return None
        return (commit, when) if COMMIT.fullmatch(commit) else None

    def listing(self, commit: str) -> Listing | None:
        """The repository's list of files, where this commit was looked at before."""
        try:
            saved = json.loads((self.directory(commit) / HEADERS_ONLY).read_text(encoding="utf-8"))
            if saved["schema"] != SCHEMA or saved["commit"] != commit:
                return None
            return Listing(commit, dict(saved["files"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def whole(self, commit: str, small: tuple[str, ...], weights: Mapping[str, int | None]) -> bool:
        """Whether the directory has all it should: a link may have lost the file it points to."""
        place = self.directory(commit)
        return (
            (place / HEADERS_ONLY).is_file()
            and all((place / name).is_file() for name in small)
            and all((place / name).is_file() for name in weights)
        )

    @contextmanager
    def aside(self, commit: str) -> Iterator[Path]:
        """An empty directory to fill; gone afterwards unless it was put in its place."""
        self._tag()
        place = self.base / f".{commit}-{os.getpid()}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def put(self, aside: Path, listing: Listing) -> Path:
        """Seals a filled directory and puts it in its place."""
        state = {
            "schema": SCHEMA,
            "about": "weight files here are holes behind true headers; nothing can be loaded from them",
            "repository": self.asked.repo,
            "endpoint": self.endpoint,
            "commit": listing.commit,
            "files": dict(listing.files),
        }
        (aside / HEADERS_ONLY).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        place = self.directory(listing.commit)
        try:
            aside.rename(place)
        except OSError:
            if not place.exists():
                raise
            # It was not whole, or another run has just put its own there.
            old = place.with_name(f".{place.name}-{os.getpid()}-old")
            place.rename(old)
            aside.rename(place)
            shutil.rmtree(old, ignore_errors=True)
        return place

    def _ref(self) -> Path:
        name = quote(self.asked.revision, safe="")
        # File systems have 255 bytes for a name.
        return self.base / "refs" / (name if len(name) < 200 else hashlib.sha256(name.encode()).hexdigest())

    def _tag(self) -> None:
        """Backups leave out directories with this tag, and a backup that knows no holes would write them out."""
        self.root.mkdir(parents=True, exist_ok=True)
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG, encoding="utf-8")
