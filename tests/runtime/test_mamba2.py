"""Strategy mamba-2 tree: its mathematics against the plain recurrence, and what decoding does that a chunk does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import compatfix.runtime as runtime
from compatfix.runtime.mamba2_rule import tree_ssd
from compatfix.runtime.trees import Tree

from . import tiny, zoo
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, leaves, path_to, target

HEADS, GROUPS, WIDTH, STATE = 6, 2, 5, 4


def recurrence(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor, path: list[int]
) -> tuple[list[Tensor], Tensor]:
    """Mamba-2 one token and head at a time (arXiv 2405.21060, section 2): h = e^{Δa} h + Δ x Bᵀ, y = h C."""
    outputs = []
    for i in path:
        heads = []
        for h in range(HEADS):
            group = h // (HEADS // GROUPS)
            decayed = state[0, h] * torch.exp(dt[0, i, h] * a[h])
            heads.append(decayed + dt[0, i, h] * torch.outer(x[0, i, h], b[0, i, group]))
        state = torch.stack(heads)[None]
        outputs.append(torch.stack([state[0, h] @ c[0, i, h // (HEADS // GROUPS)] for h in range(HEADS)]))
    return outputs, state


@pytest.mark.parametrize("parents", [BUSHY, DEEP_WITH_SIBLINGS, (-1, 0, 1, 2)], ids=["bushy", "deep", "chain"])
def test_outputs_and_states_are_those_of_the_recurrence(parents: tuple[int, ...]) -> None:
    n = len(parents)
    g = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    x, b, c = random(1, n, HEADS, WIDTH), random(1, n, GROUPS, STATE), random(1, n, GROUPS, STATE)
    dt, a, state = random(1, n, HEADS).abs(), -random(HEADS).abs(), random(1, HEADS, WIDTH, STATE)
    out, record = tree_ssd(x, dt, a, b, c, Tree(parents).ancestors, state)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        outputs, last = recurrence(x, dt, a, b, c, state, path)
        torch.testing.assert_close(out[0, path], torch.stack(outputs))
        torch.testing.assert_close(record.state_after(torch.tensor(path)), last)


def test_strong_decay_does_not_overflow() -> None:
    n = len(BUSHY)
    ones = torch.ones(1, n, 2, 4)
    out, record = tree_ssd(
        ones, ones[..., 0], torch.full((2,), -200.0), ones, ones, Tree(BUSHY).ancestors, torch.ones(1, 2, 4, 4)
    )
    assert bool(torch.isfinite(out).all())
    # What is left after such a decay is the node's own input: x (B · C) = 4.
    assert out.unique().tolist() == [4.0]
    assert record.state_after(torch.tensor(path_to(BUSHY, 23))).unique().tolist() == [1.0]


@pytest.mark.parametrize("kind", ["falcon_h1", "bamba", "nemotron_h", "granitemoehybrid"])
def test_it_is_chosen_and_nodes_are_those_of_a_plain_forward(kind: str) -> None:
    assert runtime.describe(target(kind))["strategy"] == "mamba-2 tree"
    session, ids = Session(target(kind)), tiny.tokens(len(BUSHY))
    output = session.verify(ids, BUSHY)
    for leaf in leaves(BUSHY):
        path = path_to(BUSHY, leaf)
        plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)
    path = path_to(BUSHY, 23)
    runtime.commit(session.cache, path)
    session.assert_holds([ids[node] for node in path])


def limited() -> Any:
    """A Bamba that clamps Δ in forwards of several tokens, and, as all its kind, not while it decodes."""
    torch.manual_seed(0)
    kind = zoo.KINDS["bamba"]
    config_class, model_class = kind.classes()
    config = config_class(**kind.settings, time_step_limit=(0.1, 100.0))
    config._attn_implementation = "sdpa"
    return tiny._shaken(model_class(config), 0).eval()


def test_steps_are_clamped_in_no_node_as_decoding_clamps_none() -> None:
    model = limited()
    assert runtime.prepare(model, "mamba-2 tree")["strategy"] == "mamba-2 tree"
    session, ids = Session(model), tiny.tokens(len(DEEP_WITH_SIBLINGS))
    output = session.verify(ids, DEEP_WITH_SIBLINGS)
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    made, plain = tiny.decoded(model, session.prompt, []), []
    with torch.inference_mode():
        for depth, node in enumerate(path):
            plain.append(tiny.cached(model, torch.tensor([[ids[node]]]), made, session.start + depth).logits[0, -1])
    torch.testing.assert_close(output.logits[0, path], torch.stack(plain), rtol=2e-4, atol=2e-4)
    clamped = tiny.full_logits(model, session.prompt[0].tolist() + [ids[node] for node in path])[-len(path) :]
    assert (clamped - torch.stack(plain)).abs().max() > 0.05


def test_the_records_hold_no_state_per_node() -> None:
    session = Session(target("falcon_h1"))
    session.verify(tiny.tokens(24), BUSHY)
    for kept in session.cache._compatfix_pending.kept:
        assert kept.record.state.shape == (1, 4, 16, 16)
        assert kept.record.written.shape == (1, 4, 24, 16)


def test_a_scan_that_is_not_reached_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies.mamba2 import Mamba2Pass

    session = Session(target("falcon_h1"))
    monkeypatch.setattr(Mamba2Pass, "names", ())
    with pytest.raises(runtime.RuntimeRefusal, match="its recurrence 0 times"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    session.assert_holds([])
