"""Strategy steps: outputs put together from single tokens."""

from __future__ import annotations

import pytest
import torch

from . import tiny
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, target


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5", "gemma3"])
def test_the_output_is_that_of_one_forward(kind: str) -> None:
    ids = tiny.tokens(24)
    one = Session(target(kind)).verify(ids, BUSHY, output_hidden_states=True)
    session = Session(target(kind, "steps"))
    stepped = session.verify(ids, BUSHY, output_hidden_states=True)
    assert type(stepped) is type(one)
    assert stepped.keys() == one.keys()
    torch.testing.assert_close(stepped.logits, one.logits, rtol=2e-4, atol=2e-4)
    assert len(stepped.hidden_states) == len(one.hidden_states)
    for ours, theirs in zip(stepped.hidden_states, one.hidden_states, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


def test_logits_to_keep_counts_nodes() -> None:
    ids = tiny.tokens(11)
    every = Session(target("qwen3", "steps")).verify(ids, DEEP_WITH_SIBLINGS).logits
    last = Session(target("qwen3", "steps")).verify(ids, DEEP_WITH_SIBLINGS, logits_to_keep=3).logits
    assert torch.equal(last, every[:, -3:])


def test_tuples_are_joined_too() -> None:
    ids = tiny.tokens(11)
    every = Session(target("qwen3", "steps")).verify(ids, DEEP_WITH_SIBLINGS).logits
    output = Session(target("qwen3", "steps")).verify(ids, DEEP_WITH_SIBLINGS, return_dict=False)
    assert torch.equal(output[0], every)
