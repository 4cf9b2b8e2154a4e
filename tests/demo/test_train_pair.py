"""The trained pair: its text, and a training short enough for a test that writes loadable model directories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compatfix.demo.text import corpus, document, prompts

ROOT = Path(__file__).parents[2]


def test_text_is_the_same_for_a_seed_and_another_for_another() -> None:
    assert corpus(1, 5000) == corpus(1, 5000)
    assert corpus(1, 5000) != corpus(2, 5000)
    assert 5000 <= sum(map(len, corpus(1, 5000))) < 5500


def test_prompts_are_beginnings_of_documents() -> None:
    from random import Random

    random = Random(7)
    (prompt,) = prompts(7, 1)
    assert document(random).startswith(prompt)
    assert len(prompts(7, 20)) == 20
    assert all(len(prompt) >= 20 for prompt in prompts(7, 20))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("pair")
    few = ["--target-steps", "3", "--draft-steps", "2", "--rows", "2", "--characters", "40000"]
    command = [sys.executable, "-m", "compatfix.demo.train_pair", str(output), *few]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return output, done.stdout


def test_target_loads_completely_in_bfloat16_from_shards(pair: tuple[Path, str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = pair[0] / "target"
    model, info = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True, dtype="auto")
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert 500_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 1_500_000
    assert len(list(target.glob("*.safetensors"))) > 1
    tokenizer = AutoTokenizer.from_pretrained(target)
    text = 'Anna says: "größer", twice.\n\tprint(1)'
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_draft_config_names_what_a_draft_needs(pair: tuple[Path, str]) -> None:
    config = json.loads((pair[0] / "draft" / "config.json").read_text())
    assert config["block_size"] == 8
    assert config["dflash_config"]["target_layer_ids"] == [1, 2]
    assert config["dflash_config"]["mask_token_id"] == 1
    assert config["num_target_layers"] == 4
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]


def test_both_fit_into_four_megabytes(pair: tuple[Path, str]) -> None:
    assert sum(file.stat().st_size for file in pair[0].rglob("*") if file.is_file()) < 4_000_000


def test_it_tells_what_it_measured_on_text_that_it_did_not_train_on(pair: tuple[Path, str]) -> None:
    assert "per token on held-out text" in pair[1]
    assert "by place in the block" in pair[1]
