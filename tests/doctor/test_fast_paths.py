"""Present is not used: what a forward of a tiny model calls is watched, with packages made for the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compatfix.packages import CONV, MAMBA
from compatfix.process import Worker

from .fakes import NEEDS_A_GPU, linear_attention, package

WATCH = "compatfix.doctor.jobs:watch"
HYBRID = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
CONVOLUTIONS = """
def causal_conv1d_fn(x, weight, bias=None, activation=None, **kwargs):
    return x

def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, **kwargs):
    return x
"""


def target(root: Path, config: dict[str, Any]) -> str:
    (root / "target").mkdir(exist_ok=True)
    (root / "target" / "config.json").write_text(json.dumps(config))
    return str(root / "target")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Watches a forward of the tiny model of a config, with the packages that the test has put on the path."""

    def watch(config: dict[str, Any]) -> dict[str, Any]:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with Worker() as process:
            found: dict[str, Any] = process.run(WATCH, {"target": target(tmp_path, config)}, time_limit=200)
        found["paths"] = {path["package"]: path for path in found["observed"]["paths"]}
        return found

    yield watch


def test_without_packages_the_fallback_is_named(watched: Any) -> None:
    found = watched(HYBRID)
    assert found["strategy"] == "gated-delta tree"
    rules = found["paths"]["flash-linear-attention"]
    assert (rules["state"], rules["called"]) == ("fallback", [])
    assert rules["substitutes"] == ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
    assert found["paths"]["causal-conv1d"]["state"] == "fallback"


def test_a_package_that_is_called_is_used_and_another_is_not(watched: Any, tmp_path: Path) -> None:
    linear_attention(tmp_path)
    found = watched(HYBRID)["paths"]
    assert found["flash-linear-attention"]["state"] == "used"
    assert found["flash-linear-attention"]["substitutes"] == []
    assert set(found["flash-linear-attention"]["called"]) == {
        "fla.ops.gated_delta_rule.chunk_gated_delta_rule",
        "fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule",
    }
    assert found["causal-conv1d"]["state"] == "fallback"


def test_a_package_without_one_of_the_functions_is_used_in_part(watched: Any, tmp_path: Path) -> None:
    package(tmp_path, "causal_conv1d", CONVOLUTIONS.replace("causal_conv1d_update", "of_another_name"))
    found = watched(HYBRID)["paths"]["causal-conv1d"]
    assert (found["state"], found["called"]) == ("partly", ["causal_conv1d.causal_conv1d_fn"])
    assert found["substitutes"] == ["causal_conv1d_update"]


def test_a_package_of_another_layout_is_there_and_not_called(watched: Any, tmp_path: Path) -> None:
    package(tmp_path, "fla.ops.gated_delta_rule", "def a_new_name(*args): ...\n")
    assert watched(HYBRID)["paths"]["flash-linear-attention"]["state"] == "fallback"


def test_a_package_that_raises_is_named(watched: Any, tmp_path: Path) -> None:
    linear_attention(tmp_path, NEEDS_A_GPU)
    observed = watched(HYBRID)["observed"]
    assert observed["culprit"] == "flash-linear-attention"
    assert "Pointer argument cannot be accessed from Triton" in observed["error"]


def test_attention_alone_calls_no_kernels(watched: Any) -> None:
    found = watched({"model_type": "qwen3"})
    assert (found["strategy"], found["observed"]["paths"], found["observed"]["error"]) == ("mask", [], None)


def test_state_space_layers(watched: Any) -> None:
    found = watched({"model_type": "falcon_h1", "num_hidden_layers": 2})
    assert found["observed"]["error"] is None
    assert {name: path["state"] for name, path in found["paths"].items()} == dict.fromkeys((CONV, MAMBA), "fallback")
    assert found["paths"][MAMBA]["substitutes"]


def test_a_cache_that_takes_no_questions_is_no_fault_of_the_environment(watched: Any) -> None:
    found = watched({"model_type": "mamba", "num_hidden_layers": 2})
    assert found["observed"]["error"] is None
    assert set(found["paths"]) == {CONV, MAMBA}
