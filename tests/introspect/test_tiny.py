"""Tiny models keep what they claim to keep, the same for the same seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from compatfix.introspect.classes import NoClass, config_from_dict
from compatfix.introspect.tiny import TinyError, TinyTarget, build_tiny_draft_config, build_tiny_target

from .conftest import VL, example

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"


def greedy(target: TinyTarget, steps: int, rows: int = 3) -> torch.Tensor:
    ids = torch.randint(1, target.tiny.mask_token_id, (rows, 9), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        for _ in range(steps):
            chosen = target.model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, chosen], dim=1)
    return ids[:, 9:]


@pytest.mark.parametrize(
    ("name", "class_name", "kinds"),
    [
        ("Qwen3NextConfig", "Qwen3NextForCausalLM", {LINEAR, FULL}),
        ("LlamaConfig", "LlamaForCausalLM", None),
        ("Gemma3TextConfig", "Gemma3ForCausalLM", {SLIDING, FULL}),
        ("Gemma2Config", "Gemma2ForCausalLM", {SLIDING, FULL}),
        ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", None),
        ("JambaConfig", "JambaForCausalLM", {LINEAR, FULL}),
    ],
)
def test_other_families_are_built_small_with_every_kind_of_layer(
    name: str, class_name: str, kinds: set[str] | None
) -> None:
    target = build_tiny_target(getattr(transformers, name)())
    assert target.class_name == class_name
    assert sum(p.numel() for p in target.model.parameters()) < 2_000_000
    assert target.model.config.hidden_size <= 64
    if kinds is not None:
        assert set(target.model.config.layer_types) == kinds


def test_the_class_is_the_one_that_the_loader_gives() -> None:
    config = example("qwen3.6-27b")
    assert build_tiny_target(config).class_name == "Qwen3_5ForCausalLM"
    assert build_tiny_target(config, VL).class_name == "Qwen3_5ForConditionalGeneration"
    named = build_tiny_target(config, "Qwen3_5ForConditionalGeneration")
    assert named.class_name == "Qwen3_5ForConditionalGeneration"


def test_the_same_seed_gives_the_same_model_and_another_seed_another(hybrid: Any) -> None:
    again = build_tiny_target(example("qwen3.6-27b"), seed=hybrid.target.seed).model.state_dict()
    other = build_tiny_target(example("qwen3.6-27b"), seed=5).model.state_dict()
    for name, tensor in hybrid.model.state_dict().items():
        assert torch.equal(tensor, again[name]), name
    assert not torch.equal(other["lm_head.weight"], again["lm_head.weight"])


def test_weights_are_float32_unless_another_dtype_is_asked_for(hybrid: Any) -> None:
    assert {p.dtype for p in hybrid.model.parameters()} == {torch.float32}
    half = build_tiny_target(example("qwen3.6-27b"), dtype="bfloat16").model
    assert half.dtype == torch.bfloat16
    full = hybrid.model.state_dict()
    assert all(torch.equal(t, full[name].to(t.dtype)) for name, t in half.state_dict().items())


@pytest.mark.parametrize("bench", ["hybrid", "attention_only", "windowed"])
def test_text_is_diverse_and_special_tokens_are_never_emitted(bench: str, request: pytest.FixtureRequest) -> None:
    target = request.getfixturevalue(bench).target
    text = greedy(target, 32)
    assert all(len(set(row)) >= 12 for row in text.tolist())
    assert int(text.max()) < target.tiny.mask_token_id


def test_the_mask_token_can_be_made_emittable() -> None:
    loud = build_tiny_target(example("qwen3-8b"), mask_can_be_emitted=True)
    mask, row = loud.tiny.mask_token_id, loud.model.lm_head.weight
    assert row[mask].norm() > 0.5 * row[1].norm()
    silent = build_tiny_target(example("qwen3-8b")).model.lm_head.weight
    assert 0 < silent[mask].norm() < 0.01 * silent[1].norm()


def test_recurrent_states_remember(hybrid: Any) -> None:
    """The first token of the prompt must still move the logits at its end, or a corrupted state stays invisible."""
    changed = hybrid.text.clone()
    changed[0, 0] += 1
    with torch.inference_mode():
        moved = hybrid.model(input_ids=changed, use_cache=False).logits[0, -1] - hybrid.plain[-1]
    assert moved.abs().max() > 1000 * hybrid.noise


def test_generation_does_not_stop_by_itself(attention_only: Any) -> None:
    with torch.inference_mode():
        out = attention_only.model.generate(attention_only.prompt, max_new_tokens=20, do_sample=False)
    assert out.shape[1] == attention_only.prompt.shape[1] + 20


def test_a_draft_config_is_one_that_the_library_takes(hybrid: Any) -> None:
    draft = build_tiny_draft_config(example("qwen3.6-27b-dflash"), hybrid.target.tiny)
    config = config_from_dict(draft.config)
    assert config.hidden_size == hybrid.model.config.hidden_size
    assert config.block_size == 16


def test_a_class_that_is_not_there_says_so() -> None:
    with pytest.raises(NoClass, match="has no AutoModelForNothing"):
        build_tiny_target(example("qwen3-8b"), "AutoModelForNothing")


def test_a_config_that_cannot_be_built_names_the_class() -> None:
    config = {**example("qwen3-8b"), "hidden_act": "no such activation"}
    with pytest.raises(TinyError, match="no tiny Qwen3ForCausalLM could be built"):
        build_tiny_target(config)
