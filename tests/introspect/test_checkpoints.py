"""The tensors of a checkpoint, held against the class that would load them by the library itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from compatfix.introspect.checkpoints import describe_draft_checkpoint, describe_target_checkpoint
from compatfix.introspect.configfile import read_config
from compatfix.introspect.draft import read_draft
from compatfix.profiles import TensorMatch

PAIR = Path(__file__).parents[2] / "examples" / "pair"
TEXT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}


def saved(directory: Path, config: Any, loader: str = "AutoModelForCausalLM", **options: Any) -> Path:
    """A random checkpoint of a small config, as the library writes it."""
    torch.manual_seed(0)
    model = getattr(transformers, loader).from_config(config)
    model.save_pretrained(directory, **options)
    return directory


def match_of(directory: Path, loader: str = "AutoModelForCausalLM") -> TensorMatch:
    profile = describe_target_checkpoint(read_config(directory), str(directory), loader)
    assert profile is not None
    assert profile.match is not None, profile.problems
    assert profile.match.error is None
    return profile.match


def edited(directory: Path, change: Any) -> Path:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    return saved(tmp_path, transformers.Qwen3Config(**TEXT, **HEADS))


def test_a_whole_checkpoint_lacks_nothing(qwen3: Path) -> None:
    found = match_of(qwen3)
    assert (found.missing, found.surplus, found.other_shape, found.left_out) == ((), (), (), {})
    assert found.wanted == len(load_file(qwen3 / "model.safetensors"))


def test_missing_surplus_and_misshapen_tensors_are_named(qwen3: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.k_norm.weight"]
        tensors["model.layers.0.extra.weight"] = torch.zeros(3)
        tensors["model.norm.weight"] = torch.zeros(31)

    found = match_of(edited(qwen3, change))
    assert found.missing == ("model.layers.1.self_attn.k_norm.weight",)
    assert found.surplus == ("model.layers.0.extra.weight",)
    assert found.other_shape == (("model.norm.weight", "[31]", "[32]"),)


def test_a_layer_less_in_the_config_is_surplus_and_one_more_is_missing(qwen3: Path) -> None:
    config = json.loads((qwen3 / "config.json").read_text())
    for layers, field in ((1, "surplus"), (3, "missing")):
        changed = {**config, "num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
        (qwen3 / "config.json").write_text(json.dumps(changed))
        names = getattr(match_of(qwen3), field)
        assert len(names) == 11
        assert all(name.startswith(f"model.layers.{max(layers, 2) - 1}.") for name in names)


def test_a_tied_head_need_not_be_stored(tmp_path: Path) -> None:
    tied = saved(tmp_path, transformers.Qwen3Config(**TEXT, **HEADS, tie_word_embeddings=True))
    found = match_of(tied)
    assert (found.missing, found.tied, found.tied_stored) == ((), ("lm_head.weight",), ())

    def store(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    found = match_of(edited(tied, store))
    assert (found.missing, found.surplus, found.tied_stored) == ((), (), ("lm_head.weight",))


def test_an_untied_head_that_is_not_stored_is_missing(qwen3: Path) -> None:
    found = match_of(edited(qwen3, lambda tensors: tensors.pop("lm_head.weight")))
    assert found.missing == ("lm_head.weight",)


def test_the_text_class_leaves_out_vision_and_prediction_and_finds_its_own(tmp_path: Path) -> None:
    text = {**TEXT, **HEADS, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1}
    text |= {"linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision)
    config.architectures = ["Qwen3_5ForConditionalGeneration"]
    saved(tmp_path, config, "AutoModelForImageTextToText")

    def predict(tensors: dict[str, torch.Tensor]) -> None:
        tensors["mtp.norm.weight"] = torch.zeros(32)

    edited(tmp_path, predict)
    names = list(load_file(tmp_path / "model.safetensors"))
    assert any(name.startswith("model.language_model.") for name in names)
    found = match_of(tmp_path)
    assert (found.class_name, found.missing, found.surplus) == ("Qwen3_5ForCausalLM", (), ())
    assert found.left_out == {"visual": sum("visual" in name for name in names), "mtp": 1}
    whole = match_of(tmp_path, "AutoModelForImageTextToText")
    assert (whole.missing, whole.surplus, whole.left_out) == ((), (), {"mtp": 1})
    assert whole.wanted == len(names) - 1


def test_experts_that_the_library_merges_are_found_and_a_missing_one_is_told(tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(**TEXT, **HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
    saved(tmp_path, config)
    names = list(load_file(tmp_path / "model.safetensors"))
    assert any(".experts.3.down_proj.weight" in name for name in names), "stored one by one"
    assert match_of(tmp_path).missing == ()
    whole = match_of(edited(tmp_path, lambda tensors: [tensors.pop(n) for n in names if "layers.1.mlp.experts" in n]))
    assert whole.missing
    assert all("layers.1.mlp.experts" in name for name in whole.missing)


def test_nothing_is_matched_where_a_shard_is_broken(qwen3: Path) -> None:
    file = qwen3 / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    profile = describe_target_checkpoint(read_config(qwen3), str(qwen3), "AutoModelForCausalLM")
    assert profile is not None
    assert profile.match is None
    assert "truncated" in profile.problems[0]


def test_no_weights_are_no_checkpoint() -> None:
    place = PAIR.parent / "targets" / "qwen3-8b"
    assert describe_target_checkpoint(read_config(place), str(place), "AutoModelForCausalLM") is None


def test_the_shipped_draft_is_whole_and_a_foreign_one_is_not(tmp_path: Path) -> None:
    profile = describe_draft_checkpoint(read_draft(PAIR / "draft"))
    assert profile is not None
    assert profile.match is not None
    assert (profile.match.wanted, profile.match.missing, profile.match.surplus) == (25, (), ())

    tensors = load_file(PAIR / "draft" / "model.safetensors")
    tensors["fc.weight"] = torch.zeros(96, 96)
    del tensors["layers.1.mlp.up_proj.weight"]
    tensors["layers.2.mlp.up_proj.weight"] = torch.zeros(1)
    tensors["embed_tokens.weight"] = torch.zeros(1)
    save_file({f"model.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((PAIR / "draft" / "config.json").read_text())
    match = getattr(describe_draft_checkpoint(read_draft(tmp_path)), "match", None)
    assert match.missing == ("layers.1.mlp.up_proj.weight",)
    assert match.surplus == ("layers.2.mlp.up_proj.weight",)
    assert match.other_shape == (("fc.weight", "[96, 96]", "[96, 192]"),)
    assert match.tied_stored == ("embed_tokens.weight",)


ERA = os.environ.get("COMPATFIX_ERA_457") or str(PAIR.parents[1] / ".venv-era" / "4.57.6" / "bin" / "python")
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from dataclasses import asdict
from compatfix.introspect.checkpoints import describe_target_checkpoint
from compatfix.introspect.configfile import read_config
place = sys.argv[2]
match = describe_target_checkpoint(read_config(place), place, "AutoModelForCausalLM").match
print(json.dumps(asdict(match)))
"""


@pytest.mark.skipif(not Path(ERA).exists(), reason="no environment with transformers 4.57.6 (make era)")
def test_before_transformers_5_names_are_compared_and_nothing_is_materialised(qwen3: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.k_norm.weight"]
        tensors["extra.weight"] = torch.zeros(3)
        tensors["model.norm.weight"] = torch.zeros(31)

    edited(qwen3, change)
    command = [ERA, "-c", PROGRAM, str(PAIR.parents[1]), str(qwen3)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["missing"] == ["model.layers.1.self_attn.k_norm.weight"]
    assert found["surplus"] == ["extra.weight"]
    assert found["other_shape"] == [["model.norm.weight", "[31]", "[32]"]]
