"""The patched tree keeps the hidden states that its draft reads, and generates what it generated with all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compatfix.rewrites import apply, plan

PROGRAM = """
import json, sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM, Qwen3Config
import dflash, ddtree, model.dflash
from model import DFlashDraftModel
sizes = dict(vocab_size=256, hidden_size=64, intermediate_size=128, head_dim=32)
sizes.update(num_attention_heads=4, num_key_value_heads=2)
target = AutoModelForCausalLM.from_config(Qwen3Config(**sizes, num_hidden_layers=8)).eval()
with torch.no_grad():
    for parameter in target.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
config = Qwen3Config(**sizes, num_hidden_layers=2)
config.block_size, config.num_target_layers = 8, 8
config.dflash_config = {"mask_token_id": 255, "target_layer_ids": [1, 3, 5]}
draft = DFlashDraftModel(config).eval()
kept = {}
for name, module in (("chain", dflash), ("tree", ddtree), ("alone", model.dflash)):
    def watching(states, ids, name=name, real=module.extract_context_feature):
        if isinstance(states, tuple):
            kept.setdefault(name, []).append([state is not None for state in states])
        return real(states, ids)
    module.extract_context_feature = watching
ids = torch.randint(1, 250, (1, 12), generator=torch.Generator().manual_seed(0))
texts = {
    "plain": dflash.dflash_generate(draft, target, ids, 255, 16, 1, None).output_ids,
    "chain": dflash.dflash_generate(draft, target, ids, 255, 16, 8, None).output_ids,
    "tree": ddtree.ddtree_generate(draft, target, ids, 255, 16, 8, None, tree_budget=16).output_ids,
    "alone": draft.spec_generate(target, ids, 16, None),
}
print(json.dumps({"kept": kept, "texts": {name: text.tolist() for name, text in texts.items()}}))
"""


def outcome(root: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, cwd=root)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(("ignore", "every"), [(["CF611"], True), ([], False)], ids=["without", "with"])
def test_the_patched_loops_keep_what_the_draft_reads(reference: Path, ignore: list[str], every: bool) -> None:
    apply(plan(reference, ignore=ignore))
    found = outcome(reference)
    wanted = [True] * 9 if every else [index in (2, 4, 6) for index in range(9)]
    assert set(found["kept"]) == {"chain", "tree", "alone"}
    for seen in found["kept"].values():
        assert len(seen) > 2
        assert all(places == wanted for places in seen)
    texts = found["texts"]
    assert texts["plain"] == texts["chain"] == texts["tree"] == texts["alone"]
