"""Carries a plan out, atomically and with a journal, and takes it back."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compatfix.attest.state import TRAVELLING
from compatfix.errors import UsageError
from compatfix.model import PatchPlan
from compatfix.rewrites import journal
from compatfix.rewrites.flow.evaluate import RUNTIME
from compatfix.rewrites.planning import plan
from compatfix.rewrites.runtime_copy import digest


@dataclass(frozen=True)
class Applied:
    """What was written. `journal` is the id of the record that undo reads, empty where nothing was written."""

    journal: str
    paths: tuple[str, ...]


def apply(planned: PatchPlan, *, allow_dirty: bool = False) -> Applied:
    """Writes the changes of a plan.

    Raises: UsageError before the first write where a file changed since the plan was made, or has uncommitted changes
    that are not compatfix's own and `allow_dirty` is not given.
    """
    if planned.empty:
        return Applied("", ())
    root = Path(planned.root)
    with journal.locked(root):
        before: dict[str, tuple[bytes | None, int | None]] = {}
        for change in planned.changes:
            data, mode = _state(root / change.path)
            if data != change.before:
                raise UsageError(f"{change.path} changed while it was being patched; run again")
            before[change.path] = (data, mode)
        if not allow_dirty:
            _refuse_uncommitted(root, before)
        after = {change.path: change.after for change in planned.changes}
        record = journal.write_record(root, before, after)
        for path, data in after.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            replace_file(root / path, data, before[path][1])
    return Applied(record.id, tuple(after))


def undo(root: Path, *, force: bool = False) -> list[str]:
    """Takes the latest run on a tree back, bytes and modes; gives the paths that it restored or removed.

    Raises: UsageError where there is none, or where a file was changed since and `force` is not given.
    """
    root = Path(root).resolve()
    with journal.locked(root):
        records = journal.records(root)
        if not records:
            raise UsageError(f"nothing to undo in {root}")
        record = records[-1]
        todo: list[tuple[journal.Entry, bytes | None]] = []
        changed: list[str] = []
        for entry in record.entries:
            data, mode = _state(root / entry.path)
            now = digest(data) if data is not None else None
            if now == entry.before and mode == entry.mode:
                continue  # this file was never reached, or is back already
            if now not in (entry.after, entry.before):
                changed.append(entry.path)
            todo.append((entry, (record.directory / entry.blob).read_bytes() if entry.blob else None))
        if changed and not force:
            raise UsageError(f"changed since the patch: {', '.join(changed)}; undo --force discards these changes")
        for entry, old in todo:
            if old is not None:
                replace_file(root / entry.path, old, entry.mode)
            else:
                (root / entry.path).unlink(missing_ok=True)
        for name in reversed(record.made):
            _remove_made(root / name)
        journal.close_record(record)
    return [entry.path for entry, _ in todo]


def copy_tree(root: Path, destination: Path) -> Path:
    """Copies a tree for a patch of the copy: no version control, caches or environments. Links stay links."""
    root, destination = Path(root).resolve(), Path(destination).resolve()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(f"{destination} is not empty (give a new directory for the copy)")
    inside = destination.relative_to(root).parts if destination.is_relative_to(root) else ()

    def left_out(directory: str, names: list[str]) -> set[str]:
        here = Path(directory)
        out = {n for n in names if n in (".git", "__pycache__", ".venv") or (here / n / "pyvenv.cfg").exists()}
        return out | ({inside[0]} if inside and here == root else set())

    shutil.copytree(root, destination, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    return destination


def patch_copy(root: Path, destination: Path, **options: Any) -> PatchPlan:
    """Copies a tree and patches the copy; `options` are those of `plan`. The tree itself stays as it is."""
    planned = plan(copy_tree(root, destination), **options)
    write_copy(planned)
    return planned


def write_copy(planned: PatchPlan) -> tuple[str, ...]:
    """Writes a plan into a copy that is nobody's work: no journal, no questions."""
    for change in planned.changes:
        path = Path(planned.root) / change.path
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, change.after, _state(path)[1])
    return tuple(change.path for change in planned.changes)


def replace_file(path: Path, data: bytes, mode: int | None) -> None:
    """Puts `data` in the place of a file in one step: a reader sees the old file or the new one, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".compatfix")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode if mode is not None else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    journal.sync_directory(path.parent)


def _state(path: Path) -> tuple[bytes | None, int | None]:
    try:
        if path.is_symlink():
            raise UsageError(f"{path} is a link; compatfix does not write through links")
        return path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None, None


def _refuse_uncommitted(root: Path, before: dict[str, tuple[bytes | None, int | None]]) -> None:
    paths = [path for path, (data, _) in before.items() if data is not None]
    dirty = _uncommitted(root, paths)
    if dirty:
        own = journal.own_output(root)
        dirty = [p for p in dirty if digest(before[p][0] or b"") not in own.get(p, ())]
    if dirty:
        shown = ", ".join(dirty[:5]) + (f" and {len(dirty) - 5} more" if len(dirty) > 5 else "")
        raise UsageError(f"uncommitted changes in {shown}; commit or stash them, or use --allow-dirty")


def _uncommitted(root: Path, paths: list[str]) -> list[str]:
    """Those of the files that git would call changed or untracked; none where the tree is not in git."""
    if not paths:
        return []
    command = ["git", "-C", str(root), "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--"]
    try:
        english = {**os.environ, "LC_ALL": "C"}
        find = ["git", "-C", str(root), "rev-parse", "--show-toplevel"]
        top = subprocess.run(find, capture_output=True, env=english)
        if top.returncode != 0:
            if b"not a git repository" in top.stderr:
                return []
            raise UsageError(
                f"git cannot say what is uncommitted in {root}: {_last_line(top.stderr)}; or --allow-dirty"
            )
        status = subprocess.run([*command, *(f":(literal){path}" for path in paths)], capture_output=True, check=True)
    except FileNotFoundError:
        return []
    except subprocess.CalledProcessError as error:
        raise UsageError(f"git status failed in {root}: {_last_line(error.stderr)}") from None
    base = Path(os.fsdecode(top.stdout.rstrip(b"\n"))).resolve()
    entries = [base / os.fsdecode(entry[3:]) for entry in status.stdout.split(b"\0") if entry]
    named = {entry.relative_to(root).as_posix() for entry in entries if entry.is_relative_to(root)}
    return [path for path in paths if path in named]


def _remove_made(directory: Path) -> None:
    """Removes a directory that the patch made. Compiled files and a verdict may have come; anything else keeps it."""
    if directory.name == RUNTIME:
        (directory / Path(TRAVELLING).name).unlink(missing_ok=True)
    compiled = directory / "__pycache__"
    if compiled.is_dir() and all(path.suffix == ".pyc" for path in compiled.iterdir()):
        shutil.rmtree(compiled)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def _last_line(output: bytes) -> str:
    lines = os.fsdecode(output).strip().splitlines()
    return lines[-1].strip() if lines else "no message"


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
