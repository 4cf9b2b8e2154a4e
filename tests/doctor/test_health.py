"""A package works only if it was imported: every way of being broken is told from being absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compatfix.doctor.health import health_of
from compatfix.packages import PackageSpec

from .fakes import ABORTS, HANGS, LEAVES, RAISES, metadata, package

ROOT = Path(__file__).parents[2]
SPEC = PackageSpec("some-kernels", "some_kernels", "tests")


def health(seconds: float = 20, **fields: Any) -> dict[str, Any]:
    found = health_of(PackageSpec(**{**vars(SPEC), **fields}), seconds)
    assert found.pop("name") == SPEC.name
    return found


def test_what_works_has_the_version_of_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(metadata(package(tmp_path, "some_kernels"), "some-kernels", "1.2"))
    assert health() == {"version": "1.2", "state": "works", "error": None}


def test_without_metadata_the_module_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, "some_kernels", "__version__ = '0.9'\nprint('hello')\n"))
    assert health() == {"version": "0.9", "state": "works", "error": None}


def test_absent_is_not_broken() -> None:
    assert health() == {"version": None, "state": "absent", "error": None}


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (RAISES, "ImportError: libcudart.so.12: cannot open shared object file"),
        (ABORTS, "the import crashed the process (SIGABRT)"),
        (LEAVES, "SystemExit: 3"),
        ("import os\nos._exit(7)\n", "the import ended the process with exit code 7"),
    ],
    ids=["raises", "aborts", "leaves", "exits"],
)
def test_an_import_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: str) -> None:
    monkeypatch.syspath_prepend(metadata(package(tmp_path, "some_kernels", source), "some-kernels", "1.2"))
    assert health() == {"version": "1.2", "state": "broken", "error": error}
    assert "some_kernels" not in sys.modules


def test_an_import_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, "some_kernels", HANGS))
    start = time.monotonic()
    assert health(0.5)["error"] == "the import did not end within 0.5 s"
    assert time.monotonic() - start < 10


def test_a_part_that_transformers_takes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, "some_kernels.ops", "import no_such_triton\n"))
    assert health()["state"] == "works"
    broken = health(parts=("some_kernels.ops",))
    assert (broken["state"], broken["error"]) == ("broken", "ModuleNotFoundError: No module named 'no_such_triton'")


def test_a_directory_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_kernels").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    broken = health()
    assert broken["state"] == "broken"
    assert "is a directory of that name and no package" in broken["error"]


def test_metadata_alone_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(metadata(tmp_path, "some-kernels", "1.2"))
    assert health()["error"] == "installed by its metadata, and there is no module some_kernels"


def test_it_is_a_program_that_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    for name in ("torch", "transformers"):
        package(tmp_path, name, RAISES)
    search = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "compatfix.doctor.health", "20"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search}, check=True)
    states = {entry["name"]: entry["state"] for entry in json.loads(done.stdout)["packages"]}
    assert states["torch"] == states["transformers"] == "broken"
    assert states["tokenizers"] == "works"
