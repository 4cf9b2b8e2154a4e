"""A record, outside the tree, of what was there before a patch; written before the first change, so undo is exact."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from compatfix.errors import UsageError
from compatfix.rewrites.runtime_copy import digest

STATE_VARIABLE = "COMPATFIX_STATE_DIR"
_INDEX = "journal.json"
_UNDONE = "undone"


@dataclass(frozen=True)
class Entry:
    """One file: hashes before (None: there was none) and after, its mode, and where its bytes are kept."""

    path: str
    before: str | None
    after: str
    mode: int | None
    blob: str | None


@dataclass(frozen=True)
class Record:
    """One run: its files, and the directories that it made (outermost first)."""

    directory: Path
    entries: tuple[Entry, ...]
    made: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.directory.name


def journal_of(root: Path) -> Path:
    """Where the runs on this tree are recorded."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        base = Path(chosen)
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "compatfix"
    return base / "journal" / digest(os.fsencode(root.resolve()))[:20]


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keeps a second run on the same tree out."""
    directory = journal_of(root)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = open(directory / "lock", "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(
            f"cannot write the undo journal at {directory}: {error.strerror or error}; set {STATE_VARIABLE}"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"another compatfix run is changing {root}; wait for it to end") from None
        yield


def write_record(root: Path, before: dict[str, tuple[bytes | None, int | None]], after: dict[str, bytes]) -> Record:
    """Records files by path with their bytes and modes before, and the bytes that they will have."""
    directory = journal_of(root) / f"{time.time_ns():020d}"
    directory.mkdir(parents=True)
    entries = []
    for number, (path, (data, mode)) in enumerate(before.items()):
        blob = f"{number:04d}" if data is not None else None
        if data is not None:
            write_through(directory / f"{number:04d}", data)
        entries.append(Entry(path, digest(data) if data is not None else None, digest(after[path]), mode, blob))
    record = Record(directory, tuple(entries), tuple(_missing_directories(root, after)))
    content = {"root": str(root), "entries": [asdict(entry) for entry in entries], "made": record.made}
    # The index comes last: a directory without one is a run that changed nothing.
    write_through(directory / _INDEX, (json.dumps(content, indent=2) + "\n").encode())
    sync_directory(directory)
    sync_directory(directory.parent)
    return record


def records(root: Path) -> list[Record]:
    """The runs on this tree, oldest first, without those that were undone."""
    directory = journal_of(root)
    found = []
    for place in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not (place / _INDEX).is_file() or (place / _UNDONE).exists():
            continue
        content = json.loads((place / _INDEX).read_bytes())
        entries = tuple(Entry(**entry) for entry in content["entries"])
        found.append(Record(place, entries, tuple(content["made"])))
    return found


def close_record(record: Record) -> None:
    write_through(record.directory / _UNDONE, b"")


def own_output(root: Path) -> dict[str, set[str]]:
    """Hashes that files of this tree had when a run of compatfix wrote them."""
    known: dict[str, set[str]] = {}
    for record in records(root):
        for entry in record.entries:
            known.setdefault(entry.path, set()).add(entry.after)
    return known


def write_through(path: Path, data: bytes) -> None:
    with open(path, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _missing_directories(root: Path, paths: dict[str, bytes]) -> list[str]:
    missing = {
        str(parent)
        for path in paths
        for parent in Path(path).parents
        if str(parent) != "." and not (root / parent).exists()
    }
    return sorted(missing, key=lambda name: (name.count("/"), name))
