"""What a round does beside arithmetic: forwards of the target, calls of its mixers, looks of the host at values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import compatfix.runtime as runtime
from benchmarks.common.allocations import allocations
from compatfix.validate.transfers import Transfers, counted_transfers

from . import blocks, tiny
from .blocks import Session, target

# One look at the mask and the positions of the block, one at the path to commit.
READS = 2
CASES = [
    ("qwen3", "mask"),
    ("gemma3", "mask"),
    ("qwen3_5", "gated-delta tree"),
    ("kimi_linear", "kimi-delta tree"),
    ("bamba", "mamba-2 tree"),
    ("minimax", "lightning tree"),
    ("lfm2", "conv tree"),
    ("qwen3_5", "mixer levels"),
    ("jamba", "mixer levels"),
    ("qwen3_5", "paths"),
]
every_case = pytest.mark.parametrize(("kind", "strategy"), CASES, ids=lambda value: value.replace(" ", "-"))


def wide(size: int) -> list[int]:
    """A tree six deep whatever its size, the first path 0, 1, 3, 4, 5, 6: the size alone differs."""
    parents = [-1, 0, 0, 1, 3, 4, 5]
    depths = blocks.depths(parents)
    generator = torch.Generator().manual_seed(size)
    while len(parents) < size:
        parent = int(torch.randint(0, len(parents), (1,), generator=generator))
        if depths[parent] < 5:
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return parents


def one_round(model: Any, size: int) -> Transfers:
    """A verify of a tree of `size` nodes, and a commit of a path whose nodes are no neighbours."""
    parents, session = wide(size), Session(model)
    arguments = {
        "position_ids": blocks.positions(parents, session.start),
        "attention_mask": blocks.mask(parents, session.start),
        "past_key_values": session.cache,
    }
    ids, path = torch.tensor([tiny.tokens(size)]), torch.tensor([0, 1, 3])
    with torch.inference_mode(), counted_transfers() as found:
        runtime.verify(model, ids, use_cache=True, **arguments)
        runtime.commit(session.cache, path)
    return found


@every_case
def test_the_host_looks_at_a_round_twice_whatever_the_size_of_the_tree(kind: str, strategy: str) -> None:
    small, large = one_round(target(kind, strategy), 9), one_round(target(kind, strategy), 65)
    assert small.reads == large.reads
    assert sum(large.reads.values()) == READS
    assert small.uploads == large.uploads


@pytest.mark.parametrize(("kind", "strategy", "uploads"), [("qwen3", "mask", 1), ("jamba", "mixer levels", 2)])
def test_uploads_do_not_grow_with_the_layers(kind: str, strategy: str, uploads: int) -> None:
    """The path, and the schedule of mixer levels."""
    assert sum(one_round(target(kind, strategy), 65).uploads.values()) == uploads


def test_steps_under_a_memory_limit_are_uploaded_at_once() -> None:
    model = tiny.build("jamba")
    runtime.prepare(model, "mixer levels", memory_limit=60_000)
    small, large = one_round(model, 9), one_round(model, 65)
    assert sum(large.reads.values()) == sum(small.reads.values()) == READS
    assert sum(large.uploads.values()) == 3  # the schedule, the path, the path's nodes to be run again


@pytest.mark.parametrize(("kind", "strategy"), [case for case in CASES if case[1] != "paths"])
def test_one_forward_of_the_target_verifies_and_commits(kind: str, strategy: str) -> None:
    model, calls = target(kind, strategy), []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(1))
    one_round(model, 24)
    handle.remove()
    assert len(calls) == 2  # the prefill and the block


@pytest.mark.parametrize(("kind", "strategy"), [case for case in CASES if case[0] in ("qwen3_5", "lfm2", "jamba")])
def test_each_mixer_is_called_once(kind: str, strategy: str) -> None:
    model, calls = target(kind, strategy), []
    names = {"qwen3_5": "linear_attn", "lfm2": "conv", "jamba": "mamba"}
    mixers = [getattr(layer, names[kind]) for layer in model.model.layers if hasattr(layer, names[kind])]
    session = Session(model)
    handles = [mixer.register_forward_pre_hook(lambda module, *_: calls.append(module)) for mixer in mixers]
    session.verify(tiny.tokens(24), wide(24))
    for handle in handles:
        handle.remove()
    assert calls == mixers


# ---- the counter itself

LOOKS: dict[str, Callable[[torch.Tensor], object]] = {
    "int": lambda t: int(t[0]),
    "bool": lambda t: bool(t.all()),
    "item": lambda t: t[0].item(),
    "index": lambda t: [0] * t[1],
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "numpy": lambda t: t.numpy(),
    "equal": lambda t: torch.equal(t, t),
    "nonzero": lambda t: t.nonzero(),
    "mask": lambda t: t[t > 1],
    "if": lambda t: 1 if t[0] else 0,
    "unique": lambda t: torch.unique(t),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_a_value_is_counted(look: str) -> None:
    with counted_transfers() as found:
        LOOKS[look](torch.arange(4))
    assert sum(found.reads.values()) == 1
    assert all(__file__ in place for place in found.reads)


def test_arithmetic_and_indices_are_not_counted() -> None:
    with counted_transfers() as found:
        values = torch.arange(4)
        rows = values[values.flip(0)].index_select(0, values) + 1
        rows.masked_fill(rows > 2, 0).sum().clamp(min=1)
    assert not found.reads
    assert not found.uploads


def test_a_look_at_each_node_is_counted_for_each() -> None:
    with counted_transfers() as found:
        assert sum(int(value) for value in torch.arange(65)) == 65 * 32
    assert sum(found.reads.values()) == 65


def test_python_data_made_a_tensor_is_an_upload() -> None:
    with counted_transfers() as found:
        torch.as_tensor(torch.tensor([1, 2]))
    assert sum(found.uploads.values()) == 1


# ---- the counter of bytes


def test_bytes_alive_and_their_peak_are_counted_from_the_first_mark() -> None:
    with allocations() as found:
        before = torch.zeros(256, 1000)
        found.mark("begin")
        more = torch.ones(3, 256, 1000)
        more = (before + more).sum(0)  # 7 of them while the sum of both is there: 3, 3 and 1, beside the one before
        found.mark("middle")
        del before, more
        found.mark("end")
    unit = 256 * 1000 * 4
    assert found.peak / unit == pytest.approx(7, abs=0.01)
    assert {name: round(count / unit, 2) for name, count in found.at.items()} == {"begin": 0, "middle": 1, "end": -1}
