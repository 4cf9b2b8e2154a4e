"""What is called a leap: logits that rounding alone comes near, and nothing that is merely as far off."""

from __future__ import annotations

import pytest
import torch

from compatfix.introspect.tiny import build_tiny_target
from compatfix.validate.nudged import leaps, may_choose, nudged_logits
from compatfix.validate.plain import uncached
from tests.runtime.zoo import BASE, LINEAR, MROPE

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MIXTURE = {"model_type": "qwen3_next", **BASE, **LINEAR, **MROPE, **EXPERTS, "shared_expert_intermediate_size": 32}
TEXT = list(range(3, 27))


@pytest.fixture(scope="module")
def mixture():
    return build_tiny_target(MIXTURE, seed=0, dtype=torch.bfloat16).model


def test_what_a_nudge_can_do_is_a_leap_and_a_shift_as_large_is_none(mixture):
    plain = uncached(mixture, TEXT).logits[-1]
    moved = max(nudged_logits(mixture, TEXT), key=lambda logits: float((logits - plain).abs().max()))
    distance = float((moved - plain).abs().max())
    assert leaps(mixture, TEXT, moved, distance, distance / 2)
    draw = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    shifted = plain + draw / draw.abs().max() * distance
    assert not leaps(mixture, TEXT, shifted, distance, distance / 2)
    assert leaps(mixture, TEXT, shifted, distance, distance / 1.4)


def test_a_token_far_behind_is_not_chosen_by_rounding(mixture):
    plain = uncached(mixture, TEXT).logits[-1]
    assert may_choose(mixture, TEXT, int(plain.argmax()), 0.0)
    assert not may_choose(mixture, TEXT, int(plain.argmin()), 0.1)


def test_nudges_leave_the_model_as_it_was(mixture):
    before = uncached(mixture, TEXT).logits
    list(nudged_logits(mixture, TEXT))
    assert torch.equal(uncached(mixture, TEXT).logits, before)
