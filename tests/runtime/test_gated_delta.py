"""Strategy gated-delta tree: its mathematics against the plain recurrence, and its interception."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

import compatfix.runtime as runtime
from compatfix.runtime.gated_delta_rule import tree_gated_delta
from compatfix.runtime.trees import Tree

from . import tiny
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, leaves, path_to, target


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, path: list[int]
) -> tuple[list[Tensor], Tensor]:
    """The gated delta rule as the paper states it, one token at a time (arXiv 2412.06464, eq. 10)."""
    outputs = []
    for i in path:
        state = state * g[..., i].exp()[..., None, None]
        read = (state * k[..., i, :, None]).sum(-2)
        write = (v[..., i, :] - read) * beta[..., i, None]
        state = state + k[..., i, :, None] * write[..., None, :]
        outputs.append((state * q[..., i, :, None]).sum(-2))
    return outputs, state


@pytest.mark.parametrize("parents", [BUSHY, DEEP_WITH_SIBLINGS, (-1, 0, 1, 2)], ids=["bushy", "deep", "chain"])
def test_outputs_and_states_are_those_of_the_recurrence(parents: tuple[int, ...]) -> None:
    n, heads, dk, dv = len(parents), 3, 8, 5
    g = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(1, heads, *shape, generator=g, dtype=torch.float64)

    q, k, v, state = random(n, dk), random(n, dk), random(n, dv), random(dk, dv)
    k = k / k.norm(dim=-1, keepdim=True)
    decay, beta = -random(n).abs(), random(n).sigmoid()
    out, record = tree_gated_delta(q, k, v, decay, beta, Tree(parents).ancestors, state)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        outputs, last = recurrence(q, k, v, decay, beta, state, path)
        torch.testing.assert_close(out[..., path, :], torch.stack(outputs, dim=-2))
        torch.testing.assert_close(record.state_after(torch.tensor(path)), last)


def test_strong_decay_does_not_overflow() -> None:
    parents = DEEP_WITH_SIBLINGS
    n = len(parents)
    k = torch.nn.functional.normalize(torch.ones(1, 1, n, 4), dim=-1)
    decay = torch.full((1, 1, n), -200.0)
    out, record = tree_gated_delta(k, k, k, decay, torch.ones(1, 1, n), Tree(parents).ancestors, torch.ones(1, 1, 4, 4))
    assert bool(torch.isfinite(out).all())
    assert bool(torch.isfinite(record.state_after(torch.tensor(path_to(parents, 10)))).all())


def test_the_records_hold_no_state_per_node() -> None:
    session = Session(target("qwen3_5", "gated-delta tree"))
    session.verify(tiny.tokens(24), BUSHY)
    for kept in session.cache._compatfix_pending.kept:
        assert kept.record.state.shape == (1, 4, 16, 16)
        assert kept.record.keys.shape == (1, 4, 24, 16)


def test_a_part_that_is_not_reached_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies.gated_delta import GatedDeltaPass

    session = Session(target("qwen3_5", "gated-delta tree"))
    monkeypatch.setattr(GatedDeltaPass, "names", ())
    with pytest.raises(runtime.RuntimeRefusal, match="its recurrence 0 times"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    session.assert_holds([])


def test_a_mixer_that_is_bypassed_fails_loudly() -> None:
    class Bypass(torch.nn.Module):
        def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
            return hidden_states

    model = tiny.build("qwen3_5")
    runtime.prepare(model)
    session, mixer = Session(model), model.model.layers[0].linear_attn
    model.model.layers[0].linear_attn = Bypass()
    with pytest.raises(runtime.RuntimeRefusal, match="2 of 3 stateful mixers"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    model.model.layers[0].linear_attn = mixer
    assert "forward" not in vars(mixer)
    session.assert_holds([])


def test_a_replaced_forward_is_left_to_the_next_strategy() -> None:
    model = tiny.build("qwen3_5")
    mixer = model.model.layers[0].linear_attn
    original = mixer.forward
    mixer.forward = lambda *args, **kwargs: original(*args, **kwargs)  # as a fused kernel's layer would be
    description = runtime.prepare(model)
    assert description["strategy"] == "mixer levels"
    assert "has been replaced" in description["trials"][1]["reason"]


def test_the_library_module_is_never_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(target("qwen3_5", "gated-delta tree"))
    module = sys.modules[type(session.model).__module__]
    names = ("causal_conv1d_fn", "torch_chunk_gated_delta_rule")
    before = [getattr(module, name) for name in names]
    during: list[bool] = []
    handle = session.model.model.layers[1].mlp.register_forward_hook(
        lambda *_: during.append([getattr(module, name) for name in names] == before)
    )
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    handle.remove()
    assert during == [True]
