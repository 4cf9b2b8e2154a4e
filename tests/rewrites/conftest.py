"""Trees to patch, and a state directory of their own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[2] / "vendor" / "ddtree_ref"
LOOP = b"""import torch
from transformers import DynamicCache


def generate(target, ids):
    cache = DynamicCache()
    output = target(ids, past_key_values=cache, output_hidden_states=True)
    cache.crop(3)
    return output.logits
"""
PATCHED_LOOP = b"""import torch
from compatfix_runtime import crop_to, new_cache, verify


def generate(target, ids):
    cache = new_cache(target)
    output = verify(target, ids, past_key_values=cache, output_hidden_states=True)
    crop_to(cache, 3)
    return output.logits
"""

MakeTree = Callable[[Mapping[str, bytes]], Path]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPATFIX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def tree(tmp_path: Path) -> MakeTree:
    def make(files: Mapping[str, bytes]) -> Path:
        root = tmp_path / "tree"
        for name, data in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return root

    return make


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A runtime small enough to read: what is copied does not matter here."""
    source = tmp_path / "runtime"
    source.mkdir()
    (source / "__init__.py").write_bytes(b"VERSION = 1\n")
    (source / "empty.py").write_bytes(b"")
    return source


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    root = tmp_path / "ddtree_ref"
    shutil.copytree(REFERENCE, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
