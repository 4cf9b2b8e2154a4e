"""The command line, run as a user would: in a process of its own."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ROOT / "examples" / "targets"
# One fix pending: a gate ends before a model is built.
PENDING = """from transformers import AutoModelForCausalLM, DynamicCache


def loop(path, ids):
    target = AutoModelForCausalLM.from_pretrained(path)
    kv = DynamicCache()
    target(ids, past_key_values=kv)
    kv.crop(3)
"""


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


@pytest.fixture
def compatfix(tmp_path, monkeypatch):
    """Runs `compatfix ARGS` in an empty directory; the journal goes to a directory of the test."""
    monkeypatch.setenv("COMPATFIX_STATE_DIR", str(tmp_path / "state"))
    work = tmp_path / "work"
    work.mkdir()

    def run(*args, stdin=None):
        done = subprocess.run(
            [sys.executable, "-m", "compatfix.cli", *map(str, args)],
            cwd=work,
            capture_output=True,
            text=True,
            input=stdin,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    run.directory = work
    return run


@pytest.fixture
def tree(tmp_path):
    """A copy of the reference tree."""
    copy = tmp_path / "tree"
    shutil.copytree(ROOT / "vendor" / "ddtree_ref", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def pending(tmp_path):
    """A tree of one file that is not patched."""
    directory = tmp_path / "pending"
    directory.mkdir()
    (directory / "loop.py").write_text(PENDING)
    return directory


def contents(directory):
    """Every file below a directory, as bytes; compiled files left out."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
