"""On the trained pair with a fault planted, the right cause comes first; without one, there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compatfix.process import Worker
from compatfix.rewrites import patch_copy

from .plant import FAULTS, ROOT, planted

# In the quick tests a few suspects stand beside the right one, and the tree only where the fault is the tree's.
QUICK = {
    "another mask in the config": ["mask token", "slot 0", "draft's weights"],
    "features one layer off": ["features", "draft's cache"],
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("patched") / "tree"
    patch_copy(ROOT / "vendor" / "ddtree_ref", tree)
    return tree


def causes(found: dict[str, Any]) -> list[str]:
    return [suspect["name"] for suspect in found["suspects"] if suspect["status"] == "cause"]


@pytest.mark.parametrize("name", QUICK)
def test_the_planted_fault_comes_first(name: str, worker: Worker, patched: Path, tmp_path: Path) -> None:
    plant, expected = FAULTS[name]
    made = planted(tmp_path / "made", patched, plant)
    found = worker.run("diagnose", made.job(only=QUICK[name], budgets=[], tokens=12))
    assert causes(found)[: len(expected)] == list(expected)
    assert found["repaired"]["chain"] > 1.2 * found["baseline"]["chain"] > found["floor"]["chain"]


def test_missing_tensors_are_told_and_not_refused(worker: Worker, patched: Path, tmp_path: Path) -> None:
    made = planted(tmp_path / "made", patched, FAULTS["draft's tensors missing"][0])
    found = worker.run("diagnose", made.job(only=["draft's weights"], budgets=[], tokens=8))
    first = found["suspects"][0]
    assert (first["name"], first["status"], first["evidence"]) == ("draft's weights", "cause", "read")
    assert "3 tensors are not in the draft's checkpoint" in first["reason"]


def test_a_healthy_pair_has_no_cause(worker: Worker, patched: Path, tmp_path: Path) -> None:
    made = planted(tmp_path / "made", patched)
    only = ["mask token", "features", "rollback", "siblings", "draft's weights"]
    found = worker.run("diagnose", made.job(only=only, tokens=12))
    assert causes(found) == []
    assert {suspect["status"] for suspect in found["suspects"]} == {"not the cause"}
    assert not any(found["wrong_texts"].values())
    assert found["baseline"]["tree-8"] >= found["baseline"]["chain"] > 2 > 1.5 > found["floor"]["chain"]


@pytest.mark.sweep
def test_a_healthy_pair_has_no_cause_among_all_suspects(worker: Worker, patched: Path, tmp_path: Path) -> None:
    found = worker.run("diagnose", planted(tmp_path / "made", patched).job())
    assert causes(found) == []


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_comes_first_among_all_suspects(
    name: str, worker: Worker, patched: Path, tmp_path: Path
) -> None:
    plant, expected = FAULTS[name]
    found = worker.run("diagnose", planted(tmp_path / "made", patched, plant).job())
    assert set(causes(found)[: len(expected)]) == set(expected)
