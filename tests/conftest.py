"""What every test shares: modules of a tree that a test imported do not outlive it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

VENDOR = Path(__file__).parents[1] / "vendor"


@contextmanager
def modules_forgotten(made: Path) -> Iterator[None]:
    """Trees share module names (`dflash`, `compatfix_runtime`): what came from `made` or from vendor/ is forgotten."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and any(Path(file).resolve().is_relative_to(root) for root in (made, VENDOR)):
            del sys.modules[name]


@pytest.fixture(autouse=True, scope="module")
def _modules_of_trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with modules_forgotten(tmp_path_factory.getbasetemp().resolve()):
        yield


@pytest.fixture
def clean_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For tests that import more than one tree."""
    with modules_forgotten(tmp_path_factory.getbasetemp().resolve()):
        yield
