"""Strategy mixed tree: layers of different recurrences in one model, each verified by the form of its own kind."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import compatfix.runtime as runtime

from . import blocks, tiny
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, leaves, path_to


def donated(kind: str) -> nn.Module:
    """The mixer of the first layer of a target of that kind."""
    mixers = [m for m in tiny.build(kind).modules() if getattr(m, "layer_idx", None) == 0 and hasattr(m, "out_proj")]
    return next(m for m in mixers if hasattr(m, "conv1d") or hasattr(m, "conv"))


@cache
def patchwork() -> Any:
    """A qwen3_5 with gated-delta, Mamba-2, attention and short-convolution layers: all of them the library's own."""
    model = tiny.build("qwen3_5")
    layers = model.model.layers
    for index, kind in ((1, "bamba"), (3, "lfm2")):
        mixer: Any = donated(kind)
        mixer.layer_idx = index
        layers[index].linear_attn = mixer
    return model


def test_each_mixer_runs_by_the_form_of_its_kind() -> None:
    description = runtime.prepare(patchwork())
    assert description["strategy"] == "mixed tree"
    reasons = {trial["strategy"]: trial["reason"] for trial in description["trials"]}
    assert "BambaMixer of layer 1: its forward calls no chunk_gated_delta_rule" in reasons["gated-delta tree"]
    assert "Qwen3_5GatedDeltaNet of layer 0: its forward calls no mamba2_chunk_scan" in reasons["mamba-2 tree"]
    session = Session(patchwork())
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    kept = [type(of_mixer).__name__ for of_mixer in session.cache._compatfix_pending.kept]
    assert kept == ["RuleKept", "RuleKept", "ConvKept"]
    rules = [type(of_mixer.record).__name__ for of_mixer in session.cache._compatfix_pending.kept[:2]]
    assert rules == ["DeltaRecord", "SsdRecord"]


@pytest.mark.parametrize("parents", [BUSHY, DEEP_WITH_SIBLINGS], ids=["bushy", "deep"])
@pytest.mark.parametrize("prompt_length", [2, 12])
def test_nodes_and_commits_are_those_of_plain_decoding(parents: tuple[int, ...], prompt_length: int) -> None:
    runtime.prepare(patchwork())
    session, ids = Session(patchwork(), prompt_length), tiny.tokens(len(parents))
    output = session.verify(ids, parents)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(
            output.logits[0, path], plain[-len(path) :], rtol=blocks.TOLERANCE, atol=blocks.TOLERANCE
        )
    path = path_to(parents, leaves(parents)[-1])[:3]
    runtime.commit(session.cache, path)
    session.assert_holds([ids[node] for node in path])


def test_one_forward_a_verify_and_none_a_commit() -> None:
    runtime.prepare(patchwork())
    session, sizes = Session(patchwork()), []
    mixers = [layer.linear_attn for layer in session.model.model.layers if hasattr(layer, "linear_attn")]
    projections = [mixers[0].in_proj_qkv, mixers[1].in_proj, mixers[2].in_proj]
    handles = [p.register_forward_hook(lambda _, args, __: sizes.append(args[0].shape[1])) for p in projections]
    session.verify(tiny.tokens(24), BUSHY)
    runtime.commit(session.cache, path_to(BUSHY, 23))
    for handle in handles:
        handle.remove()
    assert sizes == [24, 24, 24]


@pytest.mark.parametrize("kind", ["qwen3_5", "falcon_h1", "lfm2"])
def test_mixers_of_one_kind_are_left_to_its_own_strategy(kind: str) -> None:
    with pytest.raises(runtime.RuntimeRefusal, match="all mixers are of one kind"):
        runtime.prepare(tiny.build(kind), "mixed tree")


def test_a_mixer_without_a_form_leaves_the_model_to_the_next_strategy() -> None:
    model = tiny.build("qwen3_5")
    mixer: Any = donated("jamba")
    mixer.layer_idx = 3
    model.model.layers[3].linear_attn = mixer
    description = runtime.prepare(model)
    reasons = {trial["strategy"]: trial["reason"] for trial in description["trials"]}
    assert "JambaMambaMixer of layer 3: no tree form fits it" in reasons["mixed tree"]
    assert description["strategy"] == "mixer levels"


def test_a_mixer_that_calls_its_part_twice_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies.exchange import ExchangePass

    runtime.prepare(patchwork())
    session = Session(patchwork())
    once = ExchangePass.conv

    def twice(self: ExchangePass, *args: Any, **kwargs: Any) -> torch.Tensor:
        once(self, *args, **kwargs)
        return once(self, *args, **kwargs)

    monkeypatch.setattr(ExchangePass, "conv", twice)
    with pytest.raises(runtime.RuntimeRefusal, match="its convolution 2 times"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    session.assert_holds([])
