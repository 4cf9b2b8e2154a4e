"""The copy of the runtime that a patched tree carries, with a manifest that tells own files from edited ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import compatfix
from compatfix.codes import CODES
from compatfix.errors import UsageError
from compatfix.model import FileChange, Finding, Location
from compatfix.rewrites.flow.evaluate import RUNTIME

MANIFEST = "MANIFEST.json"


@dataclass(frozen=True)
class RuntimeCopy:
    """The changes that bring the copy in a tree up to date, and a finding where it must not be touched."""

    changes: tuple[FileChange, ...] = ()
    refused: Finding | None = None


def own_runtime() -> Path:
    """The runtime of this installation."""
    return Path(compatfix.__file__).parent / "runtime"


def runtime_files(source: Path) -> dict[str, bytes]:
    """What is copied: every Python file below `source`, and the manifest, by relative posix path."""
    if not source.is_dir():
        raise UsageError(f"no runtime to copy at {source}")
    files = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in sorted(source.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    if not files:
        raise UsageError(f"no runtime to copy at {source}")
    hashes = {name: digest(data) for name, data in files.items()}
    manifest = {"compatfix": compatfix.__version__, "files": hashes}
    files[MANIFEST] = (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()
    return files


def plan_copy(root: Path, source: Path, *, force: bool = False) -> RuntimeCopy:
    """Compares the copy below `root` with the runtime. An edited copy is left alone, and said to be, unless `force`."""
    wanted = runtime_files(source)
    copy = root / RUNTIME
    present = {name: (copy / name).read_bytes() for name in wanted if (copy / name).is_file()}
    different = {name: data for name, data in wanted.items() if present.get(name) != data}
    # A file that is as this version has it is no edit, whatever the manifest says; a file that was added is one.
    edited = [name for name in edited_files(copy) if name in different or name not in wanted]
    if edited and not force:
        message = (
            f"the copied runtime was edited ({', '.join(edited)}) and differs from this version's; it is left alone. "
            "Move the edits out, or overwrite it with --force-runtime"
        )
        place = Location(f"{RUNTIME}/{edited[0]}")
        return RuntimeCopy(refused=Finding("CF915", CODES["CF915"].level, "read", message, place))
    if not different:
        return RuntimeCopy()
    changes = [FileChange(f"{RUNTIME}/{name}", present.get(name), data) for name, data in sorted(different.items())]
    return RuntimeCopy(tuple(changes))


def edited_files(copy: Path) -> list[str]:
    """Files of the copy that are not what its own manifest says; without a manifest, all of them."""
    present = [p.relative_to(copy).as_posix() for p in sorted(copy.rglob("*.py")) if "__pycache__" not in p.parts]
    try:
        recorded = json.loads((copy / MANIFEST).read_bytes())["files"]
        known = {str(name): str(value) for name, value in recorded.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return present
    return [name for name in present if known.get(name) != digest((copy / name).read_bytes())]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
