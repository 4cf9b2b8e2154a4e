"""Strategy lightning tree: its mathematics against the plain recurrence, and mixers that it must leave to others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import compatfix.runtime as runtime
from compatfix.runtime.lightning_rule import tree_lightning
from compatfix.runtime.trees import Tree

from . import tiny
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, depths, leaves, path_to, target


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, ratio: Tensor, state: Tensor, path: list[int]
) -> tuple[list[Tensor], Tensor]:
    """Linear attention with a fixed decay, one token at a time (arXiv 2401.04658); ratio (H,)."""
    outputs = []
    for i in path:
        state = ratio[:, None, None] * state + torch.einsum("bhd,bhe->bhde", k[..., i, :], v[..., i, :])
        outputs.append(torch.einsum("bhd,bhde->bhe", q[..., i, :], state))
    return outputs, state


@pytest.mark.parametrize("parents", [BUSHY, DEEP_WITH_SIBLINGS, (-1, 0, 1, 2)], ids=["bushy", "deep", "chain"])
def test_outputs_and_states_are_those_of_the_recurrence(parents: tuple[int, ...]) -> None:
    n, heads, width = len(parents), 3, 5
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, width, generator=g, dtype=torch.float64) for _ in range(3))
    state = torch.randn(1, heads, width, width, generator=g, dtype=torch.float64)
    ratio = torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64)
    slope = -ratio.log()[:, None, None]
    out, record = tree_lightning(q, k, v, slope, torch.tensor(depths(parents)), Tree(parents).ancestors, state)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        outputs, last = recurrence(q, k, v, ratio, state, path)
        torch.testing.assert_close(out[..., path, :], torch.stack(outputs, dim=-2))
        torch.testing.assert_close(record.state_after(torch.tensor(path)), last)


def test_strong_decay_does_not_overflow() -> None:
    n = len(BUSHY)
    ones = torch.ones(1, 1, n, 4)
    out, record = tree_lightning(
        ones,
        ones,
        ones,
        torch.full((1, 1, 1), 200.0),
        torch.tensor(depths(BUSHY)),
        Tree(BUSHY).ancestors,
        torch.ones(1, 1, 4, 4),
    )
    # What is left after such a decay is the node's own: (q · k) v = 4.
    assert out.unique().tolist() == [4.0]
    assert record.state_after(torch.tensor(path_to(BUSHY, 23))).unique().tolist() == [1.0]


def test_it_is_chosen_and_nodes_are_those_of_a_plain_forward() -> None:
    assert runtime.describe(target("minimax"))["strategy"] == "lightning tree"
    session, ids = Session(target("minimax")), tiny.tokens(len(BUSHY))
    output = session.verify(ids, BUSHY)
    for leaf in leaves(BUSHY):
        path = path_to(BUSHY, leaf)
        plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)


def test_whole_and_partial_commits_leave_the_states_of_plain_decoding() -> None:
    ids = tiny.tokens(len(DEEP_WITH_SIBLINGS))
    for node in (0, 5, 10):
        session, path = Session(target("minimax")), path_to(DEEP_WITH_SIBLINGS, node)
        session.verify(ids, DEEP_WITH_SIBLINGS)
        runtime.commit(session.cache, path)
        session.assert_holds([ids[node] for node in path])


def test_the_records_hold_no_state_per_node() -> None:
    session = Session(target("minimax"))
    session.verify(tiny.tokens(24), BUSHY)
    for kept in session.cache._compatfix_pending.kept:
        assert kept.record.state.shape == (1, 4, 16, 16)
        assert kept.record.keys.shape == (1, 4, 24, 16)


def test_a_mixer_without_the_expected_parts_is_left_to_the_next_strategy() -> None:
    model = tiny.build("minimax")
    mixer = model.model.layers[0].self_attn
    mixer.qkv_proj = nn.Sequential(mixer.qkv_proj)  # as a wrapper of quantised weights may be
    reasons = {trial["strategy"]: trial["reason"] for trial in runtime.prepare(model)["trials"]}
    assert "MiniMaxLightningAttention of layer 0: its qkv_proj does not give 3 · 4 · 16" in reasons["lightning tree"]


def test_another_computation_in_the_same_parts_is_measured_and_left_to_the_next_strategy() -> None:
    class Scaled(type(tiny.build("minimax").model.layers[0].self_attn)):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, *args: object, **kwargs: object) -> object:
            assert self.slope_rate is not None
            return super().forward(2 * hidden_states, *args, **kwargs)

    model = tiny.build("minimax")
    model.model.layers[0].self_attn.__class__ = Scaled
    description = runtime.prepare(model)
    reasons = {trial["strategy"]: trial["reason"] for trial in description["trials"]}
    assert "exceeds" in reasons["lightning tree"]
    assert description["strategy"] not in ("lightning tree", None)


def test_a_mixer_that_is_bypassed_fails_loudly() -> None:
    class Bypass(nn.Module):
        def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
            return hidden_states, None

    model = tiny.build("minimax")
    runtime.prepare(model)
    session = Session(model)
    model.model.layers[0].self_attn = Bypass()
    with pytest.raises(runtime.RuntimeRefusal, match="1 of 2 stateful mixers"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
