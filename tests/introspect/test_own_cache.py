"""A model that brings a cache class of its own is measured on that class, and plain decoding of it works."""

from __future__ import annotations

import pytest
import torch
from transformers import MiniMaxConfig

from compatfix.introspect.probes import Bench, run_probes
from compatfix.introspect.tiny import TinyTarget, build_tiny_target
from compatfix.validate.plain import greedy


@pytest.fixture(scope="module")
def minimax() -> TinyTarget:
    types = ["linear_attention", "full_attention"] * 2
    return build_tiny_target(MiniMaxConfig(num_hidden_layers=4, layer_types=types))


def test_its_probes_answer(minimax: TinyTarget) -> None:
    answers = {answer.probe: answer for answer in run_probes(Bench(minimax, minimax.model.config))}
    assert [answer.probe for answer in answers.values() if answer.error] == []
    assert answers["cache_kinds"].value["class_name"] == "MiniMaxCache"
    assert answers["bare_cache_works"].ok is False
    assert answers["seq_length_counts_tokens"].ok is False
    assert answers["strategy_is_exact"].ok is True


def test_plain_decoding_of_it_is_what_generate_gives(minimax: TinyTarget) -> None:
    prompt = [3, 5, 8, 13, 21, 34]
    with torch.inference_mode():
        made = minimax.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert greedy(minimax.model, prompt, 12) == made[0, len(prompt) :].tolist()
