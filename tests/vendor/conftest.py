"""Loads the reference implementation without leaving its flat module names behind."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "vendor" / "ddtree_ref"
FLAT_NAMES = ("model", "dflash", "ddtree", "benchmark")


@pytest.fixture(scope="session")
def reference() -> SimpleNamespace:
    """The modules of vendor/ddtree_ref: model, dflash, ddtree and benchmark.

    `loguru` and `datasets`, which only the benchmark script imports, are stubbed.
    """
    stubs = {"loguru": ModuleType("loguru"), "datasets": ModuleType("datasets")}
    stubs["loguru"].logger = mock.Mock()
    stubs["datasets"].load_dataset = mock.Mock()
    borrowed = {name: sys.modules.pop(name, None) for name in (*FLAT_NAMES, *stubs)}
    sys.modules.update(stubs)
    sys.path.insert(0, str(REFERENCE))
    try:
        modules = {name: importlib.import_module(name) for name in FLAT_NAMES}
    finally:
        sys.path.remove(str(REFERENCE))
        for name in [name for name in sys.modules if name.partition(".")[0] in borrowed]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in borrowed.items() if module})
    for module in modules.values():
        assert Path(module.__file__).is_relative_to(REFERENCE)
    return SimpleNamespace(**modules)
