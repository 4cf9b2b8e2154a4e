"""The package as patched trees hold it: copied under another name, beside other copies."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import compatfix.runtime as runtime

from . import tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, mask, target

SOURCE = Path(runtime.__file__).parent


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    shutil.copytree(SOURCE, tmp_path / "some_other_name", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("some_other_name")
    for name in [name for name in sys.modules if name.split(".")[0] == "some_other_name"]:
        del sys.modules[name]


def test_it_imports_only_torch_transformers_and_itself() -> None:
    for path in SOURCE.rglob("*.py"):
        for line in re.findall(r"^\s*(?:from|import) +(\S+)", path.read_text(), re.MULTILINE):
            top = line.split(".")[0]
            assert top in {"", "torch", "transformers"} or top in sys.stdlib_module_names, (path, line)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5"])
def test_two_copies_on_one_model_do_not_disturb_each_other(kind: str, copy: Any) -> None:
    session, ids = Session(target(kind)), tiny.tokens(11)
    session.verify(ids, DEEP_WITH_SIBLINGS)
    other = copy.new_cache(session.model)
    with torch.inference_mode():
        copy.verify(session.model, session.prompt, past_key_values=other)
        copy.verify(session.model, torch.tensor([ids]), mask(DEEP_WITH_SIBLINGS, session.start), past_key_values=other)
    assert copy.describe(session.model)["strategy"] == runtime.describe(session.model)["strategy"]
    copy.commit(other, [0, 2])
    runtime.commit(session.cache, [0, 1, 4])
    session.assert_holds([ids[0], ids[1], ids[4]])
    session.cache = other
    session.assert_holds([ids[0], ids[2]])
    with pytest.raises(copy.RuntimeRefusal):
        copy.commit(other, [0])


def test_copies_share_the_lock_of_a_model(copy: Any) -> None:
    model = target("qwen3")
    ours = importlib.import_module("compatfix.runtime.plans").lock_of(model)
    assert importlib.import_module("some_other_name.plans").lock_of(model) is ours
