"""A slice of a target: few layers at real widths, built or read from the shards, judged for scope kernels."""

from __future__ import annotations

import json

import pytest
import torch

from compatfix.validate import job, sliced
from compatfix.validate.judge_kernels import judge_kernels
from compatfix.validate.load_model import Incomplete
from tests.validate.conftest import TARGETS, WRONG

pytestmark = pytest.mark.usefixtures("clean_modules")


def arguments(checkpoint, **changes):
    root, target, draft = checkpoint
    args = {"task": "slice", "tree": str(root), "target": str(target), "draft": str(draft), "seed": 0, "budgets": [8]}
    return {**args, "prompts": 2, "tokens": 12, "scratch": None, **changes}


def silent(*step, **more):
    pass


def test_a_slice_is_judged_in_its_own_dtype(checkpoint):
    answer = job.run(arguments(checkpoint, dtype="bfloat16"), silent)
    assert answer["error"] is None
    result = answer["result"]
    assert (result["layers"], result["depth"], result["values"]) == ([0, 1], 4, "random")
    assert (result["dtype"], result["attention"], result["device"]) == ("bfloat16", "sdpa", "cpu")
    assert [row["mode"] for row in result["modes"]] == ["plain", "chain", "tree-8"]
    scope, findings = judge_kernels("slice", answer, None, None)
    assert scope.status == "passed", scope.reason
    assert "cpu, attention sdpa; 2 of 4 layers at real width, values random" in scope.reason
    assert findings == ()


def test_a_wrong_tree_fails_on_a_slice(checkpoint):
    file, before, after = WRONG["positions off"]
    source = (checkpoint[0] / file).read_text()
    (checkpoint[0] / file).write_text(source.replace(before, after))
    answer = job.run(arguments(checkpoint), silent)
    scope, _ = judge_kernels("slice", answer, None, None)
    assert scope.status == "failed", scope.reason


def test_real_values_are_those_of_the_chosen_layers(checkpoint):
    from safetensors.torch import load_file

    bench = sliced.load_slice(arguments(checkpoint, values="checkpoint", dtype="float32"), silent)
    stored = {k: v for file in checkpoint[1].glob("*.safetensors") for k, v in load_file(file).items()}
    own = bench.target.state_dict()
    assert set(own) <= set(stored)
    assert {name.split(".")[2] for name in own if name.startswith("model.layers.")} == {"0", "1"}
    assert all(torch.equal(own[name], stored[name].float()) for name in own)


def test_a_tensor_that_is_not_in_the_shards_is_named(checkpoint):
    from safetensors.torch import load_file, save_file

    target = checkpoint[1]
    index = target / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    shard = target / content["weight_map"].pop("model.layers.1.mlp.up_proj.weight")
    tensors = load_file(shard)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, shard, metadata={"format": "pt"})
    index.write_text(json.dumps(content))
    with pytest.raises(Incomplete, match=r"1 tensors of the slice are not in .*: model\.layers\.1\.mlp\.up_proj\.w"):
        sliced.load_slice(arguments(checkpoint, values="checkpoint"), silent)


def test_a_slice_that_does_not_fit_is_refused_with_numbers(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(sliced, "free_bytes", lambda device: 3_000_000_000)
    args = arguments(checkpoint, target=str(TARGETS / "qwen3.6-27b"), draft=None)
    with pytest.raises(Incomplete, match=r"a slice of 4 layers needs 10\.2 GB on cpu, and 3\.0 GB are free") as refused:
        sliced.load_slice(args, silent)
    assert refused.value.detail["hint"] == "run on a device with that much free memory"


def test_a_slice_without_every_kind_of_layer_is_refused(checkpoint, tmp_path):
    """Its mixture of experts begins at the fourth layer, which no list of the config says."""
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    where = {"moe_layer_start_index": 3, "moe_layer_end_index": 11, "moe_layer_interval": 1}
    config = {"model_type": "ernie4_5_moe", **experts, **sizes, **where, "num_hidden_layers": 12, "vocab_size": 320}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Incomplete, match=r"a slice of 2 layers lacks 1 of the 2 kinds of layer of the whole"):
        sliced.load_slice(arguments(checkpoint, target=str(tmp_path), draft=None), silent)


def test_a_device_that_is_not_here_is_named(checkpoint):
    with pytest.raises(Incomplete, match=r"^there is no cuda device number 7 here \(torch "):
        sliced.load_slice(arguments(checkpoint, device="cuda:7"), silent)


def test_files_that_hold_headers_alone_are_no_values(checkpoint):
    from safetensors.torch import load_file, save_file

    for shard in checkpoint[1].glob("*.safetensors"):
        tensors = {name: torch.zeros_like(tensor) for name, tensor in load_file(shard).items()}
        save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(Incomplete, match=r"^every value of the embeddings in .* is zero: its files hold headers"):
        sliced.load_slice(arguments(checkpoint, values="checkpoint"), silent)
    answer = job.run(arguments(checkpoint, task="weights"), silent)
    assert answer["error"]["code"] == "CF912"
    assert "hold headers and no weights" in answer["error"]["message"]
