"""Embeddings, head, hidden states, attention and devices of a target."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

import compatfix.runtime as runtime

from . import tiny
from .blocks import target


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5", "qwen3_5_vl", "gemma3"])
def test_embeddings_and_head_are_found_wherever_they_are(kind: str) -> None:
    model = target(kind)
    assert runtime.input_embeddings(model) is model.get_input_embeddings()
    hidden = torch.randn(1, 2, tiny.HIDDEN)
    torch.testing.assert_close(runtime.draft_logits(model, hidden), model.lm_head(hidden))


def test_hidden_states_are_moved_to_the_heads_dtype() -> None:
    head = torch.nn.Linear(4, 5).to(torch.bfloat16)
    owner = SimpleNamespace(get_output_embeddings=lambda: head)
    assert runtime.draft_logits(owner, torch.randn(1, 2, 4)).dtype == torch.bfloat16


def test_a_target_without_a_head_is_refused() -> None:
    with pytest.raises(runtime.RuntimeRefusal, match="gives None"):
        runtime.draft_logits(SimpleNamespace(get_output_embeddings=lambda: None), torch.zeros(1, 1, 4))
    with pytest.raises(runtime.RuntimeRefusal, match="does not tell its input embeddings"):
        runtime.input_embeddings(SimpleNamespace())


def test_hidden_state_says_what_is_missing() -> None:
    states = (torch.zeros(1), None, torch.ones(1))
    assert runtime.hidden_state(states, 2) is states[2]
    for given, index, message in [
        (None, 0, "no hidden states"),
        (states, 3, "returned 3"),
        (states, 1, "hidden state 1 is missing"),
    ]:
        with pytest.raises(runtime.RuntimeRefusal, match=message):
            runtime.hidden_state(given, index)


def test_attention_falls_back_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert runtime.attention("flash_attention_2") == "sdpa"
    assert len(caplog.records) == 1
    assert runtime.attention("sdpa") == "sdpa"
    assert runtime.attention("eager") == "eager"
    assert runtime.attention("no-such-thing") == "sdpa"


def test_synchronize_without_an_accelerator_does_nothing() -> None:
    runtime.synchronize()
    runtime.synchronize("cpu")
    runtime.synchronize(torch.device("cpu"))
