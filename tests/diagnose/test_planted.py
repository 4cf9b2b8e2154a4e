"""On the trained pair with a fault planted, the right cause comes first; without one, there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compatfix import api
from compatfix.diagnose.front import DiagnoseOptions, exit_code
from compatfix.errors import UsageError
from compatfix.process import Worker
from compatfix.rewrites import patch_copy
from compatfix.validate.prompt_file import read_prompts

from .plant import FAULTS, PAIR, ROOT, Fault, planted

# In the quick tests a few suspects stand beside the right one, on prompts that the healthy draft follows.
QUICK = {
    "another mask in the config": ["mask token", "draft's weights"],
    "features one layer off": ["features", "draft's cache"],
}
LINES = (1, 2, 7, 13, 14, 15)
# A fault that leaves more of the healthy pair's accepted length than this is none.
LOWERED = 0.9
FEW = {"budgets": [], "prompts": 6, "tokens": 8}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("patched") / "tree"
    patch_copy(ROOT / "vendor" / "ddtree_ref", tree)
    return tree


@pytest.fixture(scope="module")
def texts() -> tuple[str, ...]:
    lines = read_prompts(str(PAIR / "prompts.jsonl"))
    return tuple(lines[line] for line in LINES)


def causes(found: dict[str, Any]) -> list[str]:
    return [suspect["name"] for suspect in found["suspects"] if suspect["status"] == "cause"]


@pytest.mark.parametrize("name", QUICK)
def test_the_planted_fault_comes_first(
    name: str, worker: Worker, patched: Path, texts: tuple[str, ...], tmp_path: Path
) -> None:
    fault = FAULTS[name]
    made = planted(tmp_path / "made", patched, fault.plant)
    found = worker.run("diagnose", made.job(only=QUICK[name], texts=list(texts), **FEW))
    assert causes(found)[: len(fault.first)] == list(fault.first)
    assert found["repaired"]["chain"] > 1.2 * found["baseline"]["chain"] > found["floor"]["chain"]


def test_missing_tensors_are_told_and_not_refused(
    worker: Worker, patched: Path, texts: tuple[str, ...], tmp_path: Path
) -> None:
    made = planted(tmp_path / "made", patched, FAULTS["draft's tensors missing"].plant)
    found = worker.run("diagnose", made.job(only=["draft's weights"], texts=list(texts), **FEW))
    first = found["suspects"][0]
    assert (first["name"], first["status"], first["evidence"]) == ("draft's weights", "cause", "read")
    assert "3 tensors are not in the draft's checkpoint" in first["reason"]


def test_a_tree_that_raises_is_sent_to_the_gate(worker: Worker, tmp_path: Path) -> None:
    made = planted(tmp_path / "made", ROOT / "vendor" / "ddtree_ref")
    with pytest.raises(UsageError, match=r"raised AssertionError at dflash\.py:\d+: .*; run compatfix gate first"):
        worker.run("diagnose", made.job(**FEW))


def test_an_unknown_suspect_is_refused_with_the_names_of_all(worker: Worker, patched: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no suspect 'luck'; suspects are .*mask token"):
        worker.run("diagnose", planted(tmp_path / "made", patched).job(only=["luck"], **FEW))


def test_a_healthy_pair_has_no_cause(texts: tuple[str, ...]) -> None:
    only = ("features", "rollback", "siblings", "draft's weights")
    options = DiagnoseOptions(prompts=6, tokens=8, texts=texts, only=only)
    tree = ROOT / "vendor" / "ddtree_ref"
    report = api.diagnose(tree, PAIR / "target", PAIR / "draft", options=options, patched=True)
    found = report.sections["diagnosis"]
    assert {suspect["status"] for suspect in found["suspects"]} == {"not the cause"}
    assert (report.findings, exit_code(report)) == ((), 0)
    assert found["wrong_texts"] == {"chain": 0, "tree-8": 0}
    assert min(found["baseline"].values()) > 2.5 > 1.5 > max(found["floor"].values())


@pytest.fixture(scope="module")
def healthy(worker: Worker, patched: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The pair as it is, all suspects tried."""
    return worker.run("diagnose", planted(tmp_path_factory.mktemp("healthy") / "made", patched).job())


@pytest.mark.sweep
def test_a_healthy_pair_has_no_cause_among_all_suspects(healthy: dict[str, Any]) -> None:
    assert causes(healthy) == []


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.first])
def test_every_planted_fault_comes_first_among_all_suspects(
    name: str, healthy: dict[str, Any], worker: Worker, patched: Path, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    found = worker.run("diagnose", planted(tmp_path / "made", patched, fault.plant).job(**run_as(fault)))
    assert set(causes(found)[: len(fault.first)]) == set(fault.first)
    # The recurrent states of this pair are worth little to it, but not nothing: its text leaves plain decoding.
    lowered = found["baseline"][fault.mode] < LOWERED * healthy["baseline"][fault.mode]
    assert lowered or found["wrong_texts"][fault.mode] > 0


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.harmless])
def test_a_fault_that_costs_little_is_measured_and_not_called_a_cause(
    name: str, healthy: dict[str, Any], worker: Worker, patched: Path, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    found = worker.run("diagnose", planted(tmp_path / "made", patched, fault.plant).job(**run_as(fault)))
    assert found["baseline"][fault.mode] > LOWERED * healthy["baseline"][fault.mode]
    suspect = next(suspect for suspect in found["suspects"] if suspect["name"] == fault.harmless)
    assert (suspect["evidence"], causes(found)) == ("measured", [])
    assert suspect["status"] in ("not the cause", "contributes")


def run_as(fault: Fault) -> dict[str, Any]:
    """With as many repairs as there are faults: behind them stands the healthy pair, which has a test of its own."""
    return {"levels": max(len(fault.first), 1), **({} if fault.tree else {"budgets": []})}


def test_too_few_prompts_are_refused_and_not_called_healthy(
    worker: Worker, patched: Path, texts: tuple[str, ...], tmp_path: Path
) -> None:
    made = planted(tmp_path / "made", patched)
    with pytest.raises(UsageError, match="4 prompts cannot tell a gain from luck: give at least 6"):
        worker.run("diagnose", made.job(only=["features"], texts=list(texts[:4]), **FEW))
