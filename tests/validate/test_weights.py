"""Real weights in small: a sharded checkpoint and a draft beside it, loaded as the tree's own script would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from compatfix.validate import job
from compatfix.validate.judge_weights import judge_weights
from compatfix.validate.load_model import Incomplete, check_buffers
from tests.validate.conftest import TARGETS

pytestmark = pytest.mark.usefixtures("clean_modules")


def run(root: Path, target: Path, draft: Path | None, steps: list[str] | None = None, **options: str) -> dict:
    args = {"task": "weights", "tree": str(root), "target": str(target), "draft": draft and str(draft), "seed": 0}
    args |= options
    said = (lambda stage, done=None, total=None: steps.append(stage)) if steps is not None else lambda *step: None
    return job.run({**args, "prompts": 3, "tokens": 16, "budgets": [8]}, said)


def test_a_complete_checkpoint_is_lossless_and_measured(checkpoint):
    steps: list[str] = []
    answer = run(*checkpoint, steps)
    assert answer["error"] is None
    # A step for each tensor, of the draft too.
    assert steps.count("loading the target") > 40 and steps.count("loading the draft") == 3
    plan = answer["result"]["plan"]
    assert [item["key"] for item in plan["items"]] == ["target", "draft", "kv", "draft kv", "hidden needed", "logits"]
    assert plan["items"][0]["bytes"] == sum(file.stat().st_size for file in checkpoint[1].glob("*.safetensors"))
    assert [row["mode"] for row in answer["result"]["modes"]] == ["plain", "chain", "tree-8"]
    assert all(row["same"] == 3 for row in answer["result"]["modes"])
    scopes, _ = judge_weights("weights", True, answer, None)
    verdicts = {scope.scope: scope.status for scope in scopes}
    assert verdicts["weights"] == "passed", scopes[0].reason
    assert "3 of 3 texts equal plain decoding in every mode (float32)" in scopes[0].reason
    # A random draft is worth nothing, and a watched run is not timed.
    assert verdicts["draft"] == "failed"
    assert verdicts["speed"] == "unmeasured"


def test_missing_keys_are_named(checkpoint):
    from safetensors.torch import load_file, save_file

    root, target, draft = checkpoint
    shard = next(p for p in sorted(target.glob("*.safetensors")) if "model.norm.weight" in load_file(p))
    tensors = load_file(shard)
    del tensors["model.norm.weight"]
    save_file(tensors, shard, metadata={"format": "pt"})
    index = target / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(content))
    answer = run(root, target, draft)
    assert answer["error"]["code"] == "CF912"
    assert "model.norm.weight" in answer["error"]["message"]
    assert judge_weights("weights", True, answer, None)[0][0].status == "failed"


@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_file_that_is_no_checkpoint_fails_the_weights_with_its_message(checkpoint, whose):
    root, target, draft = checkpoint
    broken = sorted((target if whose == "target" else draft).glob("*.safetensors"))[0]
    broken.write_bytes(broken.read_bytes()[:100])
    answer = run(root, target, draft)
    assert answer["error"]["code"] == "CF912"
    said = f"{broken.parent} cannot be loaded: {broken.name} is truncated inside its header (100 bytes"
    assert answer["error"]["message"].startswith(said)
    scopes, _ = judge_weights("weights", True, answer, None)
    assert [scope.status for scope in scopes] == ["failed", "unmeasured", "unmeasured"]
    assert "scope code" not in scopes[0].next_step


def test_want_of_memory_is_not_the_checkpoint_s_fault(checkpoint, monkeypatch):
    from compatfix.validate import load_model, weights

    def out_of_memory(*args: object) -> None:
        with load_model.loading("target"):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(weights, "load", out_of_memory)
    with pytest.raises(RuntimeError, match="allocate memory"):
        run(*checkpoint)


def test_a_directory_without_weights_or_shard_or_draft_says_so(checkpoint):
    root, target, draft = checkpoint
    sorted(target.glob("*.safetensors"))[0].rename(target / "elsewhere")
    assert "which is not there" in run(root, target, draft)["error"]["message"]
    assert "no weights" in run(root, TARGETS / "qwen3-8b", TARGETS / "qwen3-8b-dflash")["error"]["message"]
    assert "need a draft" in run(root, target, None)["error"]["message"]


def test_a_target_dispatched_over_cpu_and_disk_is_judged_as_one_in_memory(checkpoint):
    pytest.importorskip("accelerate")
    near = dict.fromkeys(("embed_tokens", "norm", "rotary_emb", "layers.0", "layers.1"), "cpu")
    depth = json.loads((checkpoint[1] / "config.json").read_text())["num_hidden_layers"]
    far = dict.fromkeys([f"layers.{i}" for i in range(2, depth)], "disk")
    places = {**{f"model.{name}": place for name, place in (near | far).items()}, "lm_head": "disk"}
    whole, spread = run(*checkpoint), run(*checkpoint, device_map=json.dumps(places))
    assert spread["error"] is None
    assert [row["same"] for row in spread["result"]["modes"]] == [3, 3, 3]
    assert spread["result"]["modes"][1]["accepted_length"] == whole["result"]["modes"][1]["accepted_length"]


def test_attention_and_dtype_are_as_asked_and_told(checkpoint):
    answer = run(*checkpoint, attn="eager", dtype="bfloat16")
    assert (answer["result"]["attention"], answer["result"]["dtype"]) == ("eager", "bfloat16")
    assert answer["result"]["device"] == "cpu"
    assert run(*checkpoint)["result"]["attention"] == "sdpa"


def test_an_attention_that_the_class_does_not_have_is_one_line(checkpoint):
    answer = run(*checkpoint, attn="nowhere")
    assert answer["error"]["code"] == "CF912"
    assert "did not load" in answer["error"]["message"] and "nowhere" in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]


def test_what_does_not_fit_is_refused_with_its_parts_before_it_is_loaded(checkpoint, monkeypatch):
    from compatfix.profiles import Device
    from compatfix.validate import room

    monkeypatch.setattr(room, "device_of", lambda device: Device("memory", "cpu", 1 << 30, free=200_000))
    steps: list[str] = []
    answer = run(*checkpoint, steps)
    assert answer["error"]["code"] == "CF912"
    message = answer["error"]["message"]
    assert re.match(r"does not fit: \d MB short on memory \(\d MB needed, 200 kB free, 5% kept back\): ", message)
    assert re.search(r"target weights \d+ kB, .*keys and values of 528 tokens \d+ kB", message)
    assert (
        "--device-map auto" in answer["error"]["detail"]["hint"] and "--on slice" in answer["error"]["detail"]["hint"]
    )
    assert not any(step.startswith("loading") for step in steps)


class Rope(torch.nn.Module):
    config = None

    def __init__(self, config=None):
        super().__init__()
        self.register_buffer("inv_freq", torch.arange(1.0, 5.0), persistent=False)


def test_buffers_that_loading_left_unset_are_named():
    model = Rope()
    check_buffers(model, "draft")
    model.inv_freq.mul_(1.001)
    check_buffers(model, "draft")
    model.inv_freq.zero_()
    with pytest.raises(Incomplete, match=r"^buffer inv_freq of the draft is not what Rope makes of its config$"):
        check_buffers(model, "draft")
