"""Tokens of a path are moved within the cache's tensors: the past is neither copied nor written to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

import compatfix.runtime as runtime
from compatfix.runtime.slots import keep_tokens

from . import blocks, tiny
from .blocks import BUSHY, Session, target

PAST, NODES = 40, 12


def filled(layers: int = 2) -> Any:
    cache = DynamicCache()
    for layer in range(layers):
        keys = torch.arange(2.0 * (PAST + NODES) * 3).view(1, 2, PAST + NODES, 3) + 1000 * layer
        cache.update(keys, -keys, layer)
    return cache


@pytest.mark.parametrize("path", [(), (0,), (0, 1, 2), (0, 2, 5, 11), (0, 7), (3, 1)], ids=str)
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
def test_the_past_stays_and_the_path_follows(path: tuple[int, ...], inference: bool) -> None:
    with torch.inference_mode(inference):
        cache, whole = filled(), filled()
    keep_tokens(cache, PAST, path)
    columns = [*range(PAST), *(PAST + node for node in path)]
    for layer, before in zip(cache.layers, whole.layers, strict=True):
        assert torch.equal(layer.keys, before.keys[..., columns, :])
        assert torch.equal(layer.values, before.values[..., columns, :])
    assert cache.get_seq_length() == PAST + len(path)


@pytest.mark.parametrize("path", [(0, 1), (0, 2, 5)], ids=str)
def test_the_past_is_not_copied(path: tuple[int, ...]) -> None:
    cache = filled()
    before = [layer.keys.data_ptr() for layer in cache.layers]
    keep_tokens(cache, PAST, path)
    assert [layer.keys.data_ptr() for layer in cache.layers] == before


def test_layers_that_share_their_tensors_are_moved_once() -> None:
    cache, whole = filled(), filled()
    cache.layers[1].keys, cache.layers[1].values = cache.layers[0].keys, cache.layers[0].values
    keep_tokens(cache, PAST, (0, 2, 3, 8))
    columns = [*range(PAST), *(PAST + node for node in (0, 2, 3, 8))]
    for layer in cache.layers:
        assert torch.equal(layer.keys, whole.layers[0].keys[..., columns, :])


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5"])
def test_a_commit_outside_the_mode_of_the_verify(kind: str) -> None:
    session, ids = Session(target(kind)), tiny.tokens(24)
    session.verify(ids, BUSHY)
    assert not torch.is_inference_mode_enabled()
    runtime.commit(session.cache, [0, 2, 6])
    session.assert_holds([ids[node] for node in (0, 2, 6)])
    with torch.no_grad():
        runtime.verify(session.model, torch.tensor([ids[:3]]), past_key_values=session.cache, use_cache=True)
    runtime.crop_to(session.cache, session.start + 4)
    session.assert_holds([ids[node] for node in (0, 2, 6, 0)])


def test_the_output_of_the_verify_is_not_written_to() -> None:
    session, ids = Session(target("qwen3")), tiny.tokens(24)
    output = session.verify(ids, BUSHY, output_hidden_states=True)
    before = [output.logits.clone(), *(state.clone() for state in output.hidden_states)]
    runtime.commit(session.cache, blocks.path_to(BUSHY, 23))
    assert all(
        torch.equal(one, other) for one, other in zip(before, [output.logits, *output.hidden_states], strict=True)
    )
