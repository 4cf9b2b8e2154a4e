"""Real weights in small, of every kind that people have: tied, bf16 in one file, inside a vision-language wrapper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from compatfix.introspect.tiny import build_tiny_draft_config, build_tiny_target
from compatfix.rewrites import patch_copy
from compatfix.validate import job
from compatfix.validate.judge_kernels import judge_kernels
from compatfix.validate.judge_weights import judge_weights
from compatfix.validate.load_tree import load_tree
from tests.validate.conftest import TARGETS

pytestmark = pytest.mark.usefixtures("clean_modules")
WRAPPER = "AutoModelForImageTextToText"


def made(root: Path, place: Path, name: str, loader: str, dtype: torch.dtype, **changes: Any) -> dict[str, Any]:
    """Target and draft beside it, saved as the library saves them; the arguments of a job."""
    config, draft_config = (
        json.loads((TARGETS / directory / "config.json").read_text()) for directory in (name, f"{name}-dflash")
    )
    tiny = build_tiny_target({**config, **changes}, loader, seed=0, dtype=dtype)
    tiny.model.save_pretrained(place / "target")
    draft_class: Any = load_tree(root).draft_class
    torch.manual_seed(0)
    small = draft_class.config_class.from_dict(build_tiny_draft_config(draft_config, tiny.tiny).config)
    draft_class._from_config(small).to(dtype).save_pretrained(place / "target" / "dflash")
    places = {"tree": str(root), "target": str(place / "target"), "draft": str(place / "target" / "dflash")}
    return {**places, "task": "weights", "seed": 0, "prompts": 3, "tokens": 16, "budgets": [8]}


def stored(target: str) -> set[str]:
    names: set[str] = set()
    for file in Path(target).glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    return names


def judged(args: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    answer = job.run(args, lambda *step, **more: None)
    assert answer["error"] is None, answer["error"]
    kernels, _ = judge_kernels("weights", None, None, answer["result"])
    scopes, findings = judge_weights("weights", True, answer, None)
    assert [finding for finding in findings if finding.level == "error"] == []
    return answer, {scope.scope: scope.status for scope in (kernels, *scopes)}


@pytest.mark.parametrize(("tied", "dtype"), [(True, torch.float32), (True, torch.bfloat16), (False, torch.bfloat16)])
def test_tied_and_bf16(variant, tmp_path, tied, dtype):
    args = made(variant(), tmp_path, "qwen3-8b", "AutoModelForCausalLM", dtype, tie_word_embeddings=tied)
    assert ("lm_head.weight" in stored(args["target"])) is not tied
    answer, scopes = judged(args)
    assert answer["result"]["dtype"] == str(dtype).removeprefix("torch.")
    assert answer["result"]["surplus"] == []
    assert (scopes["weights"], scopes["kernels"]) == ("passed", "passed")


def test_the_text_model_of_a_vision_language_checkpoint(tmp_path):
    """Its tensors are renamed, and those of the tower left out, as the library does it for the class the tree loads."""
    root = tmp_path / "tree"
    patch_copy(TARGETS.parents[1] / "vendor" / "ddtree_ref", root)
    args = made(root, tmp_path, "qwen3.6-27b", WRAPPER, torch.float32)
    assert any("visual" in name for name in stored(args["target"]))
    answer, scopes = judged(args)
    assert answer["subject"]["target_class"] == "Qwen3_5ForCausalLM"
    assert answer["result"]["surplus"] == []
    assert (scopes["weights"], scopes["kernels"]) == ("passed", "passed")
