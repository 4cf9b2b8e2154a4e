"""Strategy kimi-delta tree: its mathematics against the plain recurrence, and its interception."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import compatfix.runtime as runtime
from compatfix.runtime import kimi_delta_rule
from compatfix.runtime.kimi_delta_rule import tree_kimi_delta

from . import tiny
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, depths, leaves, path_to, target


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, path: list[int]
) -> tuple[list[Tensor], Tensor]:
    """Kimi's delta rule as the paper states it, one token at a time (arXiv 2510.26692)."""
    outputs = []
    for i in path:
        state = state * g[..., i, :].exp()[..., None]
        read = (state * k[..., i, :, None]).sum(-2)
        write = (v[..., i, :] - read) * beta[..., i, None]
        state = state + k[..., i, :, None] * write[..., None, :]
        outputs.append((state * q[..., i, :, None]).sum(-2))
    return outputs, state


def lines(parents: tuple[int, ...], extra: int = 0) -> Tensor:
    """(N, D): the path to each node, filled up in front with negative numbers."""
    depth = max(depths(parents)) + 1 + extra
    paths = [path_to(parents, node) for node in range(len(parents))]
    return torch.tensor([[-1] * (depth - len(path)) + path for path in paths])


@pytest.mark.parametrize("parents", [BUSHY, DEEP_WITH_SIBLINGS, (-1, 0, 1, 2)], ids=["bushy", "deep", "chain"])
@pytest.mark.parametrize("in_turn", [3, 1], ids=["heads together", "heads in turn"])
def test_outputs_and_states_are_those_of_the_recurrence(
    parents: tuple[int, ...], in_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, heads, dk, dv = len(parents), 3, 8, 5
    g = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(1, heads, *shape, generator=g, dtype=torch.float64)

    q, k, v, state = random(n, dk), random(n, dk), random(n, dv), random(dk, dv)
    k = k / k.norm(dim=-1, keepdim=True)
    decay, beta = -random(n, dk).abs(), random(n).sigmoid()
    seen = lines(parents, extra=2)
    monkeypatch.setattr(kimi_delta_rule, "ROOM", in_turn * seen.numel() * dk)
    out, record = tree_kimi_delta(q, k, v, decay, beta, seen, state)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        outputs, last = recurrence(q, k, v, decay, beta, state, path)
        torch.testing.assert_close(out[..., path, :], torch.stack(outputs, dim=-2))
        torch.testing.assert_close(record.state_after(torch.tensor(path)), last)


def test_channels_that_decay_strongly_neither_overflow_nor_disturb_those_that_do_not() -> None:
    parents = DEEP_WITH_SIBLINGS
    n = len(parents)
    g = torch.Generator().manual_seed(0)
    k = torch.nn.functional.normalize(torch.randn(1, 1, n, 4, generator=g, dtype=torch.float64), dim=-1)
    decay = torch.zeros(1, 1, n, 4, dtype=torch.float64)
    decay[..., 0] = -200.0  # exp(200 n) would overflow float32, and float64 beyond the third token
    decay[..., 1] = -1e-3
    arguments = [t.float() for t in (k, k, k, decay, torch.ones(1, 1, n), torch.ones(1, 1, 4, 4))]
    q32, k32, v32, decay32, beta32, state32 = arguments
    out, record = tree_kimi_delta(q32, k32, v32, decay32, beta32, lines(parents), state32)
    path = path_to(parents, 10)
    outputs, last = recurrence(*(t.double() for t in arguments), path)
    torch.testing.assert_close(out[..., path, :].double(), torch.stack(outputs, dim=-2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(record.state_after(torch.tensor(path)).double(), last, rtol=1e-4, atol=1e-5)


def test_it_is_chosen_and_nodes_are_those_of_a_plain_forward() -> None:
    assert runtime.describe(target("kimi_linear"))["strategy"] == "kimi-delta tree"
    session, ids = Session(target("kimi_linear")), tiny.tokens(len(BUSHY))
    output = session.verify(ids, BUSHY)
    for leaf in leaves(BUSHY):
        path = path_to(BUSHY, leaf)
        plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)
    path = path_to(BUSHY, 23)
    runtime.commit(session.cache, path)
    session.assert_holds([ids[node] for node in path])


def test_the_records_hold_no_state_per_node() -> None:
    session = Session(target("kimi_linear"))
    session.verify(tiny.tokens(24), BUSHY)
    for kept in session.cache._compatfix_pending.kept:
        assert kept.record.state.shape == (1, 4, 16, 16)
        assert kept.record.decay.shape == (1, 4, 24, 16)


def test_a_rule_that_is_not_reached_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies.kimi_delta import KimiDeltaPass

    session = Session(target("kimi_linear"))
    monkeypatch.setattr(KimiDeltaPass, "names", ())
    with pytest.raises(runtime.RuntimeRefusal, match="its recurrence 0 times"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    session.assert_holds([])
