"""Strategy conv tree: short convolutions over ancestors, and the interception that it shares with gated-delta tree."""

from __future__ import annotations

import sys

import pytest
import torch

import compatfix.runtime as runtime
from compatfix.runtime.slots import Slot
from compatfix.runtime.strategies.exchange import put_window
from compatfix.runtime.tree_conv import behind, tree_conv
from compatfix.runtime.trees import Tree

from . import tiny
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, leaves, path_to, target


def test_it_is_chosen_and_says_why_the_cheaper_ones_are_not() -> None:
    description = runtime.describe(target("lfm2"))
    assert description["strategy"] == "conv tree"
    reasons = {trial["strategy"]: trial["reason"] for trial in description["trials"]}
    assert "states that 2 layers keep" in reasons["mask"]
    assert "keeps conv_states" in reasons["gated-delta tree"]
    assert "not one conv window and one recurrent state" in reasons["gated-delta tree"]


@pytest.mark.parametrize("kind", ["qwen3_5", "falcon_h1"])
def test_mixers_that_keep_more_than_a_window_are_left_to_others(kind: str) -> None:
    with pytest.raises(runtime.RuntimeRefusal, match="not one conv window"):
        runtime.prepare(tiny.build(kind), "conv tree")


@pytest.mark.parametrize("past", [3, 4])
@pytest.mark.parametrize("order", ["channels first", "tokens first"])
def test_a_node_convolves_over_its_ancestors_then_the_past(past: int, order: str) -> None:
    parents, channels, width = DEEP_WITH_SIBLINGS, 6, 4
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, channels, past + len(parents), generator=g)
    if order == "tokens first":  # the order in memory in which the runtime puts the window before the nodes
        inputs = behind(inputs[..., :past], inputs[..., past:])
    weight, bias = torch.randn(channels, width, generator=g), torch.randn(channels, generator=g)
    windows = Tree(parents).windows(width, past, inputs.device)
    out = tree_conv(inputs, weight, bias, torch.nn.functional.silu, windows)
    for leaf in leaves(parents):
        columns = [*range(past), *(past + node for node in path_to(parents, leaf))]
        line = torch.nn.functional.conv1d(inputs[..., columns], weight[:, None], bias, groups=channels)
        expected = torch.nn.functional.silu(line[0, :, -1])
        torch.testing.assert_close(out[0, :, leaf], expected)


@pytest.mark.parametrize("width", [2, 3, 5])
def test_the_window_after_a_node_holds_its_ancestors_then_the_past(width: int) -> None:
    past = 5
    inputs = torch.arange(past + len(DEEP_WITH_SIBLINGS), dtype=torch.float32)[None, None]
    for node in range(len(DEEP_WITH_SIBLINGS)):
        holder = {"window": torch.zeros(1, 1, width)}
        put_window(Slot(0, "window", holder, "window", None), inputs, Tree(DEEP_WITH_SIBLINGS), node)
        line = [*range(past), *(past + ancestor for ancestor in path_to(DEEP_WITH_SIBLINGS, node))]
        assert holder["window"].flatten().tolist() == line[-width:]


@pytest.mark.parametrize("prompt_length", [1, 2, 3, 12])
def test_every_prefix_of_every_path_can_be_committed(prompt_length: int) -> None:
    ids = tiny.tokens(len(DEEP_WITH_SIBLINGS))
    for node in range(len(DEEP_WITH_SIBLINGS)):
        session, path = Session(target("lfm2", "conv tree"), prompt_length), path_to(DEEP_WITH_SIBLINGS, node)
        session.verify(ids, DEEP_WITH_SIBLINGS)
        runtime.commit(session.cache, path)
        session.assert_holds([ids[node] for node in path])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nodes_are_those_of_a_plain_forward(dtype: torch.dtype) -> None:
    model = tiny.build("lfm2", dtype)
    assert runtime.prepare(model)["strategy"] == "conv tree"
    tolerance = 2e-4 if dtype == torch.float32 else runtime.describe(model)["fault"] / 4
    session, ids = Session(model), tiny.tokens(len(BUSHY))
    output = session.verify(ids, BUSHY)
    for leaf in leaves(BUSHY):
        path = path_to(BUSHY, leaf)
        plain = tiny.full_logits(model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=tolerance, atol=tolerance)


def test_one_forward_a_verify_and_none_a_commit() -> None:
    session, shapes = Session(target("lfm2", "conv tree")), []
    handle = session.model.model.layers[0].conv.in_proj.register_forward_hook(
        lambda _, args, __: shapes.append(tuple(args[0].shape[:2]))
    )
    session.verify(tiny.tokens(24), BUSHY)
    runtime.commit(session.cache, path_to(BUSHY, 23))
    handle.remove()
    assert shapes == [(1, 24)]


def test_a_convolution_that_is_not_reached_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies import exchange

    session = Session(target("lfm2", "conv tree"))
    monkeypatch.setattr(exchange, "CONVS", ())
    with pytest.raises(runtime.RuntimeRefusal, match="its convolution 0 times"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    session.assert_holds([])


def test_a_wrong_window_is_measured_and_the_next_strategy_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies import exchange

    monkeypatch.setattr(exchange, "put_window", lambda *_: None)  # windows not moved at a commit
    description = runtime.prepare(tiny.build("lfm2"))
    assert description["strategy"] == "mixer levels"
    reasons = {trial["strategy"]: trial["reason"] for trial in description["trials"]}
    assert "exceeds" in reasons["conv tree"]


def test_the_library_module_is_never_patched() -> None:
    session = Session(target("lfm2", "conv tree"))
    module = sys.modules[type(session.model).__module__]
    before, during = module.causal_conv1d_fn, []
    handle = session.model.model.layers[2].feed_forward.register_forward_hook(
        lambda *_: during.append(module.causal_conv1d_fn is before)
    )
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    handle.remove()
    assert during == [True]
