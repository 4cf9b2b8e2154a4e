"""Strategy cca tree: queries and keys convolved over ancestors, and the part of a value that the parent leaves."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import compatfix.runtime as runtime

from . import blocks, tiny, zoo
from .blocks import BUSHY, CHAIN, DEEP_WITH_SIBLINGS, Session, leaves, path_to

ZAYA = zoo.Kind(
    "zaya",
    "ZayaConfig",
    "ZayaForCausalLM",
    {
        **zoo.BASE,
        "num_hidden_layers": 3,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "router_hidden_size": 16,
        "cca_time0": 3,
        "cca_time1": 2,
    },
    ("cca tree", "paths", "steps"),
)


def built(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return tiny._shaken(ZAYA.build(), 0).to(dtype).eval()


@cache
def shared() -> Any:
    model = built()
    runtime.prepare(model)
    return model


def test_it_is_chosen_and_says_why_the_cheaper_ones_are_not() -> None:
    description = runtime.describe(shared())
    assert description["strategy"] == "cca tree"
    reasons = {trial["strategy"]: trial["reason"] for trial in description["trials"]}
    assert "its forward calls no chunk_gated_delta_rule" in reasons["gated-delta tree"]
    assert "not one conv window" in reasons["conv tree"]


@pytest.mark.parametrize("parents", [BUSHY, DEEP_WITH_SIBLINGS, CHAIN], ids=["bushy", "deep", "chain"])
@pytest.mark.parametrize("prompt_length", [1, 2, 12])
def test_nodes_are_those_of_a_plain_forward(parents: tuple[int, ...], prompt_length: int) -> None:
    session, ids = Session(shared(), prompt_length), tiny.tokens(len(parents))
    output = session.verify(ids, parents)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(
            output.logits[0, path], plain[-len(path) :], rtol=blocks.TOLERANCE, atol=blocks.TOLERANCE
        )


@pytest.mark.parametrize("node", [0, 2, 5, 10])
def test_every_commit_leaves_the_cache_of_plain_decoding(node: int) -> None:
    session, ids = Session(shared()), tiny.tokens(len(DEEP_WITH_SIBLINGS))
    path = path_to(DEEP_WITH_SIBLINGS, node)
    session.verify(ids, DEEP_WITH_SIBLINGS)
    runtime.commit(session.cache, path)
    session.assert_holds([ids[node] for node in path])
    session.verify(ids, DEEP_WITH_SIBLINGS)
    runtime.roll_back(session.cache, len(ids))
    session.assert_holds([ids[node] for node in path])


def test_one_forward_a_verify_and_none_a_commit() -> None:
    session, shapes = Session(shared()), []
    handle = session.model.model.layers[0].self_attn.qkv_proj.q_proj.register_forward_hook(
        lambda _, args, __: shapes.append(tuple(args[0].shape[:2]))
    )
    session.verify(tiny.tokens(24), BUSHY)
    runtime.commit(session.cache, path_to(BUSHY, 23))
    handle.remove()
    assert shapes == [(1, 24)]


def test_a_convolution_of_another_kind_is_left_to_the_next_strategy() -> None:
    model = built()
    mixer = model.model.layers[0].self_attn.qkv_proj
    mixer.conv_qk_grouped = nn.Sequential(mixer.conv_qk_grouped)  # as a wrapper of quantised weights may be
    description = runtime.prepare(model)
    assert description["strategy"] == "paths"
    reasons = {trial["strategy"]: trial["reason"] for trial in description["trials"]}
    assert "its conv_qk_grouped is no plain convolution without padding" in reasons["cca tree"]


def test_a_part_that_is_not_reached_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies import cca

    session = Session(shared())
    monkeypatch.setattr(cca, "DELAYED", "v_proj_of_another_version")
    with pytest.raises(runtime.RuntimeRefusal, match="its delayed projection 0 times"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    session.assert_holds([])
