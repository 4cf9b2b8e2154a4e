"""The test of distributions on models that can be enumerated: its false alarms, and the faults that it must see."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from compatfix.validate.distribution import Draws, detectable, weigh
from compatfix.validate.sampler import Sampler
from tests.runtime.speculation import Table, TableSession, Way, draws_of, generate

ALARM = 1e-4
TABLE = Table()
EXACT_CHAIN, EXACT_TREE = Way(), Way(width=2)
REJECTION_CHAIN, REJECTION_TREE = Way("rejection"), Way("rejection", width=2)
FORMS = {"exact chain": EXACT_CHAIN, "exact tree": EXACT_TREE}
FORMS |= {"rejection chain": REJECTION_CHAIN, "rejection tree": REJECTION_TREE}
SAMPLERS = {
    "temperature": {"temperature": 0.7},
    "top-p": {"top_p": 0.8},
    "top-k": {"top_k": 4},
    "all three": {"temperature": 1.3, "top_p": 0.9, "top_k": 6},
}


def sampled(way: Way, texts: int = 120, seed: int = 0, forgetful: bool = False) -> Draws:
    dice = random.Random(seed)
    prompts = [[dice.randrange(9), dice.randrange(9)] for _ in range(texts)]
    made = [generate(TableSession(TABLE, forgetful), TABLE.draft, prompt, 16, way, dice) for prompt in prompts]
    return draws_of(made, TABLE.logits_of, way.sampler)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("form", FORMS)
def test_right_code_is_not_flagged_and_every_situation_occurs(form, sampler):
    evidence = weigh(sampled(replace(FORMS[form], **SAMPLERS[sampler])))
    assert evidence.p > ALARM
    assert min(evidence.counts.values()) >= 40
    assert set(evidence.counts) == {"first", "behind accepted", "after a rejection", "after full acceptance"}


@pytest.mark.parametrize("form", FORMS)
def test_false_alarms_are_no_more_frequent_than_stated(form):
    way = replace(FORMS[form], temperature=0.8, top_p=0.95)
    runs = 70
    low = torch.tensor([weigh(sampled(way, texts=12, seed=seed)).p for seed in range(runs)])
    for rate in (0.02, 0.1, 0.3):
        spread = 3 * math.sqrt(rate * (1 - rate) / runs)
        assert float((low <= rate).double().mean()) <= rate + spread
    # And not because it never sees anything: the same sizes tell a draft that is always believed.
    wrong = replace(FORMS["rejection chain"], accept="always")
    seen = [weigh(sampled(wrong, texts=12, seed=seed)).p <= 0.02 for seed in range(20)]
    assert sum(seen) >= 12


FAULTS = {
    "greedy after a rejection, exact form": replace(EXACT_CHAIN, correction="greedy"),
    "greedy after a rejection, rejection form": replace(REJECTION_CHAIN, correction="greedy"),
    "correction from the target instead of the residual": replace(REJECTION_CHAIN, correction="target"),
    "correction from the target behind several candidates": replace(REJECTION_TREE, correction="target"),
    "the draft is always believed": replace(REJECTION_CHAIN, accept="always"),
    "the draft draws at another temperature": replace(REJECTION_CHAIN, draft_temperature=0.5),
    "top-p for the ratio and not for the draft": replace(REJECTION_CHAIN, top_p=0.8, draft_top_p=1.0),
    "top-p for the draft and not for the target": replace(REJECTION_CHAIN, top_p=0.8, target_top_p=1.0),
    "no top-p in the exact form": replace(EXACT_TREE, top_p=0.8, target_top_p=1.0),
    "draws again until a child has the token": replace(EXACT_TREE, redraws=3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_flagged(fault):
    assert weigh(sampled(FAULTS[fault])).p <= ALARM


def test_a_small_fault_takes_more_tokens():
    """The likeliest token of the residual in place of a draw from it: a quarter of the tokens, and near the truth."""
    fault = replace(REJECTION_CHAIN, correction="greedy residual")
    few, many = (weigh(sampled(fault, texts=texts)).p for texts in (20, 300))
    assert few > ALARM >= many


def test_a_state_that_keeps_rejected_tokens_is_flagged_where_it_shows():
    evidence = weigh(sampled(EXACT_CHAIN, forgetful=True))
    assert evidence.p <= ALARM
    assert evidence.situation in ("after a rejection", "anywhere")


def test_a_token_without_a_chance_is_proof():
    evidence = weigh(sampled(FAULTS["no top-p in the exact form"]))
    assert evidence.p == 0
    assert evidence.way == "no chance"


def test_what_it_says_that_it_would_see_it_sees():
    """The stated total variation, made by hand; a third of it mostly stays unseen."""
    draws = sampled(EXACT_CHAIN)
    stated = detectable(draws, ALARM)["likeliest"]
    assert 0.03 < stated < 0.2
    likeliest = torch.nn.functional.one_hot(draws.chances.argmax(1), draws.chances.shape[1]).double()
    share = stated / (float((likeliest - draws.chances).abs().sum(1).mean()) / 2)
    generator = torch.Generator().manual_seed(5)

    def told(part: float) -> float:
        mixed = (1 - part) * draws.chances + part * likeliest
        runs = torch.multinomial(mixed, 30, replacement=True, generator=generator)
        return sum(weigh(replace(draws, tokens=runs[:, run])).p <= ALARM for run in range(30)) / 30

    assert told(share) >= 0.7
    assert told(share / 3) <= 0.3


def test_more_tokens_show_less():
    few, many = (detectable(sampled(EXACT_TREE, texts=texts), ALARM)["proposed"] for texts in (20, 200))
    assert many < few / 2


@pytest.mark.parametrize("way", [Sampler(0.7), Sampler(1.0, top_p=0.6), Sampler(1.0, top_k=5), Sampler(1.4, 0.9, 30)])
def test_chances_are_those_of_the_library(way):
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    scores = TemperatureLogitsWarper(way.temperature)(None, logits)
    scores = TopKLogitsWarper(way.top_k)(None, scores) if way.top_k else scores
    scores = TopPLogitsWarper(way.top_p)(None, scores) if way.top_p < 1 else scores
    torch.testing.assert_close(way.chances(logits), torch.softmax(scores, -1))


def test_a_cut_that_rounding_decides_is_known_as_one():
    chances = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], dtype=torch.float64)
    assert Sampler(1.0, top_p=0.8).on_the_edge(chances.log()).tolist() == [True, False]
    tied = torch.tensor([[2.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    assert Sampler(1.0, top_k=2).on_the_edge(tied).tolist() == [True, False]
    assert not Sampler(0.8).on_the_edge(tied).any()
