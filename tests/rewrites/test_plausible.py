"""The fixes that everyone tries run on a hybrid without an exception, and give other text than the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compatfix.rewrites import plan, plausible_fix, write_copy

PROGRAM = """
import json
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
sizes = dict(vocab_size=256, hidden_size=64, intermediate_size=128, head_dim=32)
sizes.update(num_attention_heads=4, num_key_value_heads=2)
kinds = (["linear_attention"] * 3 + ["full_attention"]) * 2
target = AutoModelForCausalLM.from_config(Qwen3_5TextConfig(
    **sizes, num_hidden_layers=8, layer_types=kinds, linear_num_value_heads=4, linear_num_key_heads=2,
    linear_key_head_dim=16, linear_value_head_dim=16,
)).eval()
with torch.no_grad():  # at default scale the states hardly matter
    for parameter in target.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
from model import DFlashDraftModel
from ddtree import ddtree_generate
from dflash import dflash_generate
config = Qwen3Config(**sizes, num_hidden_layers=2)
config.block_size, config.num_target_layers = 8, 8
config.dflash_config = {"mask_token_id": 255, "target_layer_ids": [1, 3, 5]}
draft = DFlashDraftModel(config).eval()
ids = torch.randint(1, 250, (1, 12), generator=torch.Generator().manual_seed(0))
plain = dflash_generate(draft, target, ids, 255, 24, 1, None).output_ids
chain = dflash_generate(draft, target, ids, 255, 24, 8, None).output_ids
tree = ddtree_generate(draft, target, ids, 255, 24, 8, None, tree_budget=16).output_ids
alone = draft.spec_generate(target, ids, 24, None)
print(json.dumps([plain.tolist() == other.tolist() for other in (chain, tree, alone)]))
"""


def same_as_plain_decoding(root: Path) -> list[bool]:
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert run.returncode == 0, run.stderr[-2000:]
    answers: list[bool] = json.loads(run.stdout.splitlines()[-1])
    return answers


@pytest.fixture(autouse=True)
def needs_qwen3_5() -> None:
    pytest.importorskip("transformers.models.qwen3_5")


def test_plausible_fixes_give_other_text(reference: Path) -> None:
    plausible_fix(reference)
    assert same_as_plain_decoding(reference) == [False, False, False]


def test_the_patch_gives_the_models_text(reference: Path) -> None:
    write_copy(plan(reference))
    assert same_as_plain_decoding(reference) == [True, True, True]
