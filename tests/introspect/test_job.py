"""The whole job on the examples, and what it says to bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compatfix.checks import run_checks
from compatfix.introspect.draft import default_layer_ids, read_draft
from compatfix.introspect.job import run
from compatfix.introspect.memory import plan_memory
from compatfix.memory_plan import gigabytes
from compatfix.profiles import Device, Inspection
from compatfix.serial import from_plain, to_plain
from compatfix.worker import JobError


def test_the_result_crosses_the_pipe_and_back(inspected: dict[str, Any]) -> None:
    inspection = from_plain(Inspection, inspected)
    assert to_plain(inspection) == {key: value for key, value in inspected.items() if key != "answers"}
    assert inspected["answers"] == inspected["target"]["answers"]


def test_every_statement_says_how_it_is_known(inspected: dict[str, Any]) -> None:
    statements = inspected["statements"]
    assert {s["evidence"] for s in statements} <= {"measured", "read", "assumed"}
    topics = {s["topic"] for s in statements}
    assert topics == {"structure", "cache", "hidden states", "draft", "memory", "environment", "tiny model"}
    assert len({(s["topic"], s["key"]) for s in statements}) == len(statements)


def test_the_strategy_of_the_hybrid(inspected: dict[str, Any]) -> None:
    assert inspected["target"]["strategy"] == "gated-delta tree"


def test_memory_of_the_hybrid(inspected: dict[str, Any]) -> None:
    plan = from_plain(Inspection, inspected).memory
    sizes = {item.key: gigabytes(item.bytes) for item in plan.items}
    assert sizes["target"] == "53.8 GB"
    assert sizes["hidden long"] == "21.8 GB"
    assert sizes["hidden long needed"] == "1.7 GB"
    assert "two 48 GB cards hold it, one does not" in plan.verdicts
    # The records of the strategy in use count; a state for each node is shown for comparison.
    assert not next(item for item in plan.items if item.key == "tree states").counted
    assert next(item for item in plan.items if item.key == "tree records").counted


@pytest.mark.parametrize(
    ("cards", "fits"), [((48,), False), ((48, 48), True), ((80,), True)], ids=["one 48", "two 48", "one 80"]
)
def test_given_devices_are_compared(inspected: dict[str, Any], cards: tuple[int, ...], fits: bool) -> None:
    inspection = from_plain(Inspection, inspected)
    devices = [Device(f"card {i}", "cuda", size * 10**9, given=True) for i, size in enumerate(cards)]
    plan = plan_memory(inspection.target, inspection.draft, devices, context=4096, tree_budget=64)
    assert plan.fits is fits


def test_what_stands_in_the_way_of_the_hybrid(inspected: dict[str, Any]) -> None:
    findings = {finding.code: finding.level for finding in run_checks(from_plain(Inspection, inspected))}
    assert findings["CF204"] == findings["CF301"] == "error"
    assert findings["CF408"] == "warning"
    assert findings["CF104"] == findings["CF611"] == "note"
    assert not {"CF205", "CF302", "CF401", "CF402", "CF403", "CF404", "CF405", "CF406", "CF407", "CF409"} & set(
        findings
    )


def test_the_attention_only_example_has_nothing_in_its_way(examples: Path) -> None:
    args = {"target": str(examples / "qwen3-8b"), "draft": str(examples / "qwen3-8b-dflash"), "devices": [24]}
    inspection = from_plain(Inspection, run(args, lambda *_: None))
    assert inspection.target.strategy == "mask"
    assert [f.code for f in run_checks(inspection) if f.level == "error"] == []
    assert inspection.memory.fits is True


def test_a_tiny_model_that_cannot_be_built_leaves_the_rest(tmp_path: Path, examples: Path, monkeypatch: Any) -> None:
    from compatfix.introspect import target as module
    from compatfix.introspect.tiny import TinyError

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise TinyError("no tiny Qwen3ForCausalLM could be built: because")

    monkeypatch.setattr(module, "build_tiny_target", fails)
    inspection = from_plain(Inspection, run({"target": str(examples / "qwen3-8b")}, lambda *_: None))
    assert inspection.target.chosen.tensors == 399
    assert "CF013" in {finding.code for finding in run_checks(inspection)}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param({"model_type": "no_such"}, r"does not know the model type 'no_such'.*CF005", id="unknown type"),
        pytest.param(
            {"model_type": "no_such", "auto_map": {"AutoModelForCausalLM": "code.Model"}},
            r"needs remote code.*CF006",
            id="remote code",
        ),
        pytest.param({"model_type": "siglip"}, r"AutoModelForCausalLM has no class", id="no language model"),
        pytest.param({"model_type": "qwen3", "hidden_size": "large"}, r"is not a config of its", id="wrong type"),
        pytest.param({"model_type": "qwen3", "hidden_act": "none such"}, r"Qwen3ForCausalLM cannot be", id="no part"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(JobError, match=says) as caught:
        run({"target": str(tmp_path)}, lambda *_: None)
    assert "\n" not in str(caught.value)


def test_a_missing_draft_is_one_line(examples: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"no config\.json in"):
        run({"target": str(examples / "qwen3-8b"), "draft": str(tmp_path)}, lambda *_: None)


@pytest.mark.parametrize("name", ["qwen3.6-27b-dflash", "qwen3-8b-dflash"])
def test_the_example_drafts(examples: Path, name: str) -> None:
    draft = read_draft(examples / name)
    assert (draft.block_size, draft.block_size_at) == (16, "top")
    assert draft.mask_token_at == draft.layer_ids_at == "dflash_config"
    assert draft.layer_ids == default_layer_ids(draft.num_target_layers or 0, 5)
    assert draft.remote_code
    assert draft.missing == ()


def test_a_target_is_no_draft(examples: Path) -> None:
    assert read_draft(examples / "qwen3-8b").missing == ("dflash_config or num_target_layers",)


@pytest.mark.parametrize(
    ("target", "draft", "ids"), [(64, 5, (1, 16, 31, 46, 61)), (36, 5, (1, 9, 17, 25, 33)), (28, 1, (14,))]
)
def test_layer_ids_that_a_config_leaves_out(target: int, draft: int, ids: tuple[int, ...]) -> None:
    assert default_layer_ids(target, draft) == ids
