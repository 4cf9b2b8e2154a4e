"""Sampling through verify and commit: right programs keep the target's distribution on a target with states and on one
without; what is left of rejected tokens does not. Chances come from a plain forward without a cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
import torch

import compatfix.runtime as runtime
from compatfix.validate.distribution import weigh

from . import blocks, tiny
from .speculation import Text, Way, draws_of, generate

ALARM = 1e-4
TEXTS, TOKENS, PROMPT = 16, 10, 7
KINDS = ("qwen3", "qwen3_5")
WAYS = {
    "exact chain, temperature": Way(depth=2, temperature=0.8),
    "exact tree, top-p": Way(depth=2, width=2, top_p=0.9),
    "rejection chain, top-k": Way("rejection", depth=2, top_k=8),
    "rejection tree, all three": Way("rejection", 2, width=2, temperature=1.2, top_p=0.95, top_k=20),
}


class VerifiedSession:
    """The runtime's own verify and commit."""

    def __init__(self, kind: str) -> None:
        self.model = blocks.target(kind)

    def prefill(self, prompt: Sequence[int]) -> list[float]:
        self.cache = runtime.new_cache(self.model)
        with torch.inference_mode():
            output = runtime.verify(self.model, torch.tensor([prompt]), past_key_values=self.cache, use_cache=True)
        return output.logits[0, -1].tolist()

    def verify(self, ids: Sequence[int], parents: Sequence[int]) -> list[list[float]]:
        past = self.cache.get_seq_length()
        with torch.inference_mode():
            output = runtime.verify(
                self.model,
                torch.tensor([ids]),
                position_ids=blocks.positions(parents, past),
                attention_mask=blocks.mask(parents, past),
                past_key_values=self.cache,
                use_cache=True,
            )
        return output.logits[0].tolist()

    def commit(self, path: Sequence[int]) -> None:
        runtime.commit(self.cache, path)


class UnpatchedSession(VerifiedSession):
    """Published code with a cache built from the config: keys and values are compacted, states are left as they are."""

    def prefill(self, prompt: Sequence[int]) -> list[float]:
        self.cache = tiny.own_cache(self.model)
        with torch.inference_mode():
            return tiny.cached(self.model, torch.tensor([prompt]), self.cache).logits[0, -1].tolist()

    def verify(self, ids: Sequence[int], parents: Sequence[int]) -> list[list[float]]:
        self.past = self.cache.get_seq_length()
        name = "cache" if "cache" in self.model.forward.__code__.co_varnames else "past_key_values"
        with torch.inference_mode():
            output = self.model(
                torch.tensor([ids]),
                position_ids=blocks.positions(parents, self.past),
                attention_mask=blocks.mask(parents, self.past),
                use_cache=True,
                **{name: self.cache},
            )
        return output.logits[0].tolist()

    def commit(self, path: Sequence[int]) -> None:
        kept = torch.tensor([*range(self.past), *(self.past + node for node in path)])
        for layer in self.cache.layers:
            if isinstance(getattr(layer, "keys", None), torch.Tensor) and layer.keys.numel():
                layer.keys, layer.values = layer.keys[..., kept, :], layer.values[..., kept, :]


@cache
def drafted(kind: str, text: tuple[int, ...]) -> list[float]:
    """What the target says, with errors that follow from the text."""
    logits = tiny.full_logits(blocks.target(kind), text)[-1]
    generator = torch.Generator().manual_seed(random.Random(str(text)).getrandbits(32))
    return (logits + 1.5 * torch.randn(logits.shape, generator=generator)).tolist()


def sampled(session, kind: str, way: Way, texts: int = TEXTS):
    dice = random.Random(7)
    made = [
        generate(session(kind), lambda text: drafted(kind, tuple(text)), prompt, TOKENS, way, dice)
        for prompt in ([dice.randrange(1, 99) for _ in range(PROMPT)] for _ in range(texts))
    ]

    def logits_of(text: Text) -> torch.Tensor:
        return tiny.full_logits(blocks.target(kind), list(text))[len(text.prompt) - 1 : -1]

    return draws_of(made, logits_of, way.sampler)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_right_programs_keep_the_distribution(kind, way):
    evidence = weigh(sampled(VerifiedSession, kind, WAYS[way]))
    assert evidence.p > ALARM
    assert evidence.counts["behind accepted"] >= 30
    assert evidence.counts["after a rejection"] >= 15


@pytest.mark.parametrize("way", ["exact chain, temperature", "rejection chain, top-k"])
def test_states_of_rejected_tokens_show(way):
    assert weigh(sampled(UnpatchedSession, "qwen3_5", WAYS[way], texts=8)).p <= ALARM


def test_without_states_the_published_compaction_is_right():
    assert weigh(sampled(UnpatchedSession, "qwen3", WAYS["exact tree, top-p"])).p > ALARM


@pytest.mark.parametrize(
    ("way", "texts"),
    [
        (Way(width=2, correction="greedy"), 16),
        (Way(width=2, redraws=3), 16),
        (Way("rejection", accept="always"), 40),
        (Way("rejection", top_p=0.9, target_top_p=1.0), 16),
    ],
    ids=["greedy after a rejection", "redraws", "always accepts", "top-p on one side"],
)
def test_wrong_programs_show_on_a_model_too(way, texts):
    assert weigh(sampled(VerifiedSession, "qwen3", way, texts=texts)).p <= ALARM
