"""Strategy mask: masks as the model gets them, and windows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import compatfix.runtime as runtime
from compatfix.runtime.masks import additive, tree_masks
from compatfix.runtime.trees import Tree

from . import blocks, tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, path_to, target

CPU = torch.device("cpu")


def seen(mask: torch.Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask[0, 0] == 0]


def test_a_node_sees_the_past_its_ancestors_and_itself() -> None:
    mask = tree_masks(SimpleNamespace(), Tree((-1, 0, 0, 2)), 2, torch.float32, CPU)
    assert seen(mask) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4, 5]]


def test_windows_count_positions_not_columns() -> None:
    config = SimpleNamespace(layer_types=["sliding_attention", "full_attention"], sliding_window=3)
    masks = tree_masks(config, Tree((-1, 0, 0, 2)), 2, torch.float32, CPU)
    # Positions of the nodes: 2, 3, 3, 4.
    assert seen(masks["sliding_attention"]) == [[0, 1, 2], [1, 2, 3], [1, 2, 4], [2, 4, 5]]
    assert seen(masks["full_attention"]) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4, 5]]


def test_chunks_end_where_they_end() -> None:
    config = SimpleNamespace(layer_types=["chunked_attention"], attention_chunk_size=3)
    masks = tree_masks(config, Tree((-1, 0, 0, 2)), 2, torch.float32, CPU)
    assert seen(masks["chunked_attention"]) == [[0, 1, 2], [3], [4], [4, 5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bool_masks_become_additive_in_the_models_dtype(dtype: torch.dtype) -> None:
    mask = additive(torch.tensor([[[[True, False]]]]), dtype)
    assert mask.dtype == dtype
    assert mask.flatten().tolist() == [0.0, torch.finfo(dtype).min]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bool_tree_masks_are_right_under_every_attention(attention: str) -> None:
    model = tiny.build("qwen3", attention=attention)
    session, ids = Session(model), tiny.tokens(11)
    with torch.inference_mode():
        output = runtime.verify(
            model,
            torch.tensor([ids]),
            attention_mask=blocks.mask(DEEP_WITH_SIBLINGS, session.start, torch.bool),
            past_key_values=session.cache,
        )
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    plain = tiny.full_logits(model, session.prompt[0].tolist() + [ids[node] for node in path])
    torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)


def test_a_generation_far_past_the_window() -> None:
    session = Session(target("gemma3"), prompt_length=5 * tiny.WINDOW)
    ids = tiny.tokens(24)
    output = session.verify(ids, blocks.BUSHY)
    path = path_to(blocks.BUSHY, 20)
    plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
    torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)


def test_a_missing_window_mask_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from compatfix.runtime.strategies import base

    def without_windows(config: object, *rest: object) -> object:
        return tree_masks(SimpleNamespace(), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(base, "tree_masks", without_windows)
    description = runtime.prepare(tiny.build("gemma3"))
    assert description["strategy"] == "paths"
    assert "exceeds" in description["trials"][0]["reason"]
