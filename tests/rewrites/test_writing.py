"""Writing is atomic and recorded first, undo is exact, and nobody's work is overwritten."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from compatfix.errors import UsageError
from compatfix.model import FileChange, PatchPlan
from compatfix.rewrites import apply, copy_tree, diff, journal, patch_copy, plan, undo

from .conftest import LOOP, PATCHED_LOOP, MakeTree, git

Snapshot = dict[str, tuple[bytes, int]]


def snapshot(root: Path) -> Snapshot:
    return {
        path.relative_to(root).as_posix(): (
            path.read_bytes() if path.is_file() else b"",
            stat.S_IMODE(path.stat().st_mode),
        )
        for path in sorted(root.rglob("*"))
        if ".git" not in path.parts
    }


@pytest.fixture
def root(tree: MakeTree) -> Path:
    made = tree({"loop.py": LOOP, "other.py": LOOP.replace(b"\n", b"\r\n"), "same.py": b"x = 1\n", "data.txt": b"\0"})
    (made / "loop.py").chmod(0o755)
    (made / "other.py").chmod(0o600)
    return made


def test_plan_writes_nothing(root: Path, runtime: Path) -> None:
    before = snapshot(root)
    assert not plan(root, runtime=runtime).empty
    assert snapshot(root) == before


def test_apply_then_undo_restores_bytes_and_modes(root: Path, runtime: Path) -> None:
    before = snapshot(root)
    applied = apply(plan(root, runtime=runtime))
    assert set(applied.paths) == {
        "loop.py",
        "other.py",
        "compatfix_runtime/__init__.py",
        "compatfix_runtime/empty.py",
        "compatfix_runtime/MANIFEST.json",
    }
    after = snapshot(root)
    assert after["loop.py"] == (PATCHED_LOOP, 0o755)
    assert after["other.py"] == (PATCHED_LOOP.replace(b"\n", b"\r\n"), 0o600)
    (root / "compatfix_runtime" / "__pycache__").mkdir()
    (root / "compatfix_runtime" / "__pycache__" / "empty.cpython-311.pyc").write_bytes(b"")
    assert set(undo(root)) == set(applied.paths)
    assert snapshot(root) == before
    with pytest.raises(UsageError, match="nothing to undo"):
        undo(root)


def test_a_patched_tree_has_nothing_to_patch(root: Path, runtime: Path) -> None:
    apply(plan(root, runtime=runtime))
    again = plan(root, runtime=runtime)
    assert again.empty and not again.copied


def test_two_runs_are_undone_one_by_one(root: Path, runtime: Path) -> None:
    start = snapshot(root)
    apply(plan(root, select=["CF203"], runtime=runtime))
    middle = snapshot(root)
    apply(plan(root, runtime=runtime))
    undo(root)
    assert snapshot(root) == middle
    undo(root)
    assert snapshot(root) == start


def test_a_file_that_its_owner_put_beside_the_runtime_stays(root: Path, runtime: Path) -> None:
    apply(plan(root, runtime=runtime))
    (root / "compatfix_runtime" / "notes.txt").write_text("mine")
    undo(root)
    assert [p.name for p in (root / "compatfix_runtime").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("writes", range(5))
def test_a_crash_between_writes_is_undone(
    root: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    before = snapshot(root)
    planned = plan(root, runtime=runtime)
    real, left = os.replace, [writes]

    def failing(source: str, target: Path) -> None:
        if not left[0]:
            raise OSError("no space left on device")
        left[0] -= 1
        real(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="no space"):
        apply(planned)
    monkeypatch.setattr(os, "replace", real)
    undo(root)
    assert snapshot(root) == before


def test_a_crash_before_the_journal_is_complete_changes_nothing(
    root: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(root)
    real = journal.write_through

    def failing(path: Path, data: bytes) -> None:
        if path.name == "journal.json":
            raise OSError("gone")
        real(path, data)

    monkeypatch.setattr(journal, "write_through", failing)
    with pytest.raises(OSError, match="gone"):
        apply(plan(root, runtime=runtime))
    monkeypatch.setattr(journal, "write_through", real)
    assert snapshot(root) == before
    with pytest.raises(UsageError, match="nothing to undo"):
        undo(root)


def test_undo_refuses_a_file_that_changed_since(root: Path, runtime: Path) -> None:
    before = snapshot(root)
    apply(plan(root, runtime=runtime))
    (root / "loop.py").write_bytes(PATCHED_LOOP + b"# mine\n")
    now = snapshot(root)
    with pytest.raises(UsageError, match=r"changed since the patch: loop\.py"):
        undo(root)
    assert snapshot(root) == now
    undo(root, force=True)
    assert snapshot(root) == before


def test_apply_refuses_a_file_that_changed_since_the_plan(root: Path, runtime: Path) -> None:
    planned = plan(root, runtime=runtime)
    (root / "loop.py").write_bytes(LOOP + b"# mine\n")
    now = snapshot(root)
    with pytest.raises(UsageError, match="changed while"):
        apply(planned)
    assert snapshot(root) == now


def test_one_run_at_a_time(root: Path, runtime: Path) -> None:
    directory = journal.journal_of(root)
    directory.mkdir(parents=True)
    with open(directory / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another compatfix run"):
            apply(plan(root, runtime=runtime))


class TestGit:
    @pytest.fixture
    def committed(self, root: Path) -> Path:
        git(root, "init", "-q")
        git(root, "add", "-A")
        git(root, "commit", "-qm", "start")
        return root

    def test_clean_files_are_patched(self, committed: Path, runtime: Path) -> None:
        (committed / "same.py").write_bytes(b"x = 2\n")
        assert apply(plan(committed, runtime=runtime)).paths

    def test_an_untouched_directory_above_does_not_matter(self, committed: Path, runtime: Path, tree: MakeTree) -> None:
        inner = committed / "sub dir"
        inner.mkdir()
        (inner / "loop.py").write_bytes(LOOP)
        with pytest.raises(UsageError, match=r"uncommitted changes in loop\.py"):
            apply(plan(inner, runtime=runtime))
        git(committed, "add", "-A")
        git(committed, "commit", "-qm", "more")
        assert apply(plan(inner, runtime=runtime)).paths

    @pytest.mark.parametrize("staged", [False, True])
    def test_uncommitted_changes_are_refused(self, committed: Path, runtime: Path, staged: bool) -> None:
        (committed / "loop.py").write_bytes(LOOP + b"# mine\n")
        if staged:
            git(committed, "add", "-A")
        now = snapshot(committed)
        with pytest.raises(UsageError, match=r"uncommitted changes in loop\.py; commit or stash them"):
            apply(plan(committed, runtime=runtime))
        assert snapshot(committed) == now
        assert "loop.py" in apply(plan(committed, runtime=runtime), allow_dirty=True).paths

    def test_own_output_is_not_somebodys_work(self, committed: Path, runtime: Path) -> None:
        apply(plan(committed, select=["CF203"], runtime=runtime))
        assert apply(plan(committed, runtime=runtime)).paths

    def test_own_output_that_was_edited_is(self, committed: Path, runtime: Path) -> None:
        apply(plan(committed, select=["CF203"], runtime=runtime))
        path = committed / "loop.py"
        path.write_bytes(path.read_bytes() + b"# mine\n")
        with pytest.raises(UsageError, match="uncommitted"):
            apply(plan(committed, runtime=runtime))

    def test_git_that_cannot_answer_is_not_taken_for_no_git(self, committed: Path, runtime: Path) -> None:
        (committed / ".git" / "config").write_text("broken [")
        with pytest.raises(UsageError, match="git cannot say"):
            apply(plan(committed, runtime=runtime))

    def test_git_applies_the_diff(self, committed: Path, runtime: Path, tmp_path: Path) -> None:
        planned = plan(committed, runtime=runtime)
        patch = tmp_path / "patch"
        patch.write_bytes(diff(planned).encode("utf-8", "surrogateescape"))
        git(committed, "apply", str(patch))
        for change in planned.changes:
            assert (committed / change.path).read_bytes() == change.after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\nb", b"a\nc"),
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"\xe9\n", b"\xe9\xe8\n"),
        (None, b""),
        (None, b"x"),
        (b"a\rb\n", b"a\rc\n"),
    ],
)
def test_git_applies_odd_diffs(tmp_path: Path, before: bytes | None, after: bytes) -> None:
    root = tmp_path / "odd"
    root.mkdir()
    git(root, "init", "-q")
    if before is not None:
        (root / "f.py").write_bytes(before)
    text = diff(PatchPlan(str(root), (FileChange("f.py", before, after),)))
    subprocess.run(["git", "apply"], cwd=root, input=text.encode("utf-8", "surrogateescape"), check=True)
    assert (root / "f.py").read_bytes() == after


class TestRuntimeCopy:
    def test_is_made_only_where_the_tree_uses_it(self, tree: MakeTree, runtime: Path) -> None:
        root = tree({"a.py": b"k, v = kv.update(k, v, 0, kwargs)\n"})
        planned = plan(root, runtime=runtime)
        assert [change.path for change in planned.changes] == ["a.py"]
        assert planned.copied == ()

    def test_says_what_it_holds(self, root: Path, runtime: Path) -> None:
        apply(plan(root, runtime=runtime))
        manifest = json.loads((root / "compatfix_runtime" / "MANIFEST.json").read_text())
        assert set(manifest["files"]) == {"__init__.py", "empty.py"}

    def test_is_upgraded_in_place(self, root: Path, runtime: Path) -> None:
        apply(plan(root, runtime=runtime))
        (runtime / "__init__.py").write_bytes(b"VERSION = 2\n")
        planned = plan(root, runtime=runtime)
        assert set(planned.copied) == {"compatfix_runtime/__init__.py", "compatfix_runtime/MANIFEST.json"}
        apply(planned)
        assert (root / "compatfix_runtime" / "__init__.py").read_bytes() == b"VERSION = 2\n"
        assert plan(root, runtime=runtime).empty

    @pytest.mark.parametrize("manifest", ["kept", "removed", "spoilt"])
    def test_is_left_alone_where_it_was_edited(self, root: Path, runtime: Path, manifest: str) -> None:
        apply(plan(root, runtime=runtime))
        copy = root / "compatfix_runtime"
        (copy / "empty.py").write_bytes(b"mine = 1\n")
        if manifest == "removed":
            (copy / "MANIFEST.json").unlink()
        elif manifest == "spoilt":
            (copy / "MANIFEST.json").write_bytes(b"[]")
        planned = plan(root, runtime=runtime)
        assert planned.empty
        assert [f.code for f in planned.unfixed] == ["CF915"]
        assert "compatfix_runtime/empty.py" in plan(root, runtime=runtime, force=True).copied


def test_a_copy_is_patched_and_the_tree_stays(root: Path, runtime: Path, tmp_path: Path) -> None:
    (root / "link.py").symlink_to("same.py")
    before = snapshot(root)
    copy = tmp_path / "copy"
    assert patch_copy(root, copy, runtime=runtime).root == str(copy)
    assert (copy / "loop.py").read_bytes() == PATCHED_LOOP
    assert (copy / "link.py").is_symlink()
    assert stat.S_IMODE((copy / "loop.py").stat().st_mode) == 0o755
    assert snapshot(root) == before
    with pytest.raises(UsageError, match="not empty"):
        copy_tree(root, copy)


def test_a_copy_inside_the_tree_does_not_hold_itself(root: Path) -> None:
    copy = copy_tree(root, root / "patched")
    assert not (copy / "patched").exists()
