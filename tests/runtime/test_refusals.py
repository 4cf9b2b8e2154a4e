"""What is refused, with a message that says why, and leaves everything as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import compatfix.runtime as runtime

from . import blocks, tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, mask, positions, target

START, SIZE = 12, len(DEEP_WITH_SIBLINGS)


def tree_mask() -> torch.Tensor:
    return mask(DEEP_WITH_SIBLINGS, START)


def changed(*entries: tuple[int, int, float]) -> torch.Tensor:
    made = tree_mask()
    for row, column, value in entries:
        made[0, 0, row, column] = value
    return made


HIDE = torch.finfo(torch.float32).min
MALFORMED: dict[str, tuple[Any, str]] = {
    "one column too many": (torch.cat([tree_mask(), tree_mask()[..., :1]], -1), "24 columns for 23 keys"),
    "one column missing": (tree_mask()[..., 1:], "22 columns for 23 keys"),
    "a row missing": (tree_mask()[:, :, 1:], "shape"),
    "hidden past": (changed((3, 2, HIDE)), "past is not fully visible"),
    "blind to itself": (changed((3, START + 3, HIDE)), "does not see itself"),
    "sees a later node": (changed((3, START + 7, 0.0)), "sees a later one"),
    "two roots": (changed((1, START, HIDE)), "more than one root"),
    "sees an uncle": (changed((4, START + 2, 0.0)), "not transitive"),
    "misses an ancestor": (changed((5, START + 1, HIDE)), "not transitive"),
    "weights instead of visibility": (changed((3, 2, -0.5)), "neither show"),
    "integers": (tree_mask().to(torch.int64), "must be bool or additive float"),
    "padding": (torch.tensor([[0] + [1] * (START + SIZE - 1)]), "padding inside a block"),
    "two heads": (tree_mask().expand(1, 2, -1, -1), "shape"),
}


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5"])
@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_masks(kind: str, case: str) -> None:
    made, message = MALFORMED[case]
    session = Session(target(kind), START)
    with pytest.raises(runtime.RuntimeRefusal, match=message):
        runtime.verify(session.model, torch.tensor([tiny.tokens(SIZE)]), made, past_key_values=session.cache)
    session.assert_holds([])


@pytest.mark.parametrize(
    ("made", "past"),
    [(tree_mask(), START + 1), (changed((4, START + 3, 0.0)), START), (None, START)],
    ids=["off by one", "a sibling leaks into the mask", "a tree without its mask"],
)
def test_positions_that_do_not_follow_the_tree(made: torch.Tensor | None, past: int) -> None:
    session = Session(target("qwen3"), START)
    with pytest.raises(runtime.RuntimeRefusal, match="positions do not follow the tree"):
        runtime.verify(
            session.model,
            torch.tensor([tiny.tokens(SIZE)]),
            attention_mask=made,
            position_ids=positions(DEEP_WITH_SIBLINGS, past),
            past_key_values=session.cache,
        )


@pytest.mark.parametrize("prefilled", [True, False])
def test_batches(prefilled: bool) -> None:
    session = Session(target("qwen3"))
    cache = session.cache if prefilled else runtime.new_cache()
    with pytest.raises(runtime.RuntimeRefusal, match="a batch of 2"):
        runtime.verify(session.model, torch.ones(2, 3, dtype=torch.long), past_key_values=cache)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "at least the root"),
        ([1, 3], "must start at 0"),
        ([0, 3], "follows 1, not 0"),
        ([0, 1, 2], "follows 0, not 1"),
        ([0, 11], "stay below 11"),
        ([0, -1], "must start at 0"),
    ],
    ids=str,
)
def test_commits_of_what_is_no_path(indices: list[int], message: str) -> None:
    session, ids = Session(target("qwen3_5")), tiny.tokens(SIZE)
    session.verify(ids, DEEP_WITH_SIBLINGS)
    with pytest.raises(runtime.RuntimeRefusal, match=message):
        runtime.commit(session.cache, indices)
    runtime.commit(session.cache, [0, 1])  # the record is still there
    session.assert_holds(ids[:2])


def test_a_tree_cannot_be_cropped_in_the_middle() -> None:
    session = Session(target("qwen3"))
    session.verify(tiny.tokens(SIZE), DEEP_WITH_SIBLINGS)
    with pytest.raises(runtime.RuntimeRefusal, match="a tree is pending"):
        runtime.crop_to(session.cache, session.start + 2)


@pytest.mark.parametrize("pending", [False, True])
def test_states_cannot_be_cropped_below_the_last_block(pending: bool) -> None:
    session = Session(target("qwen3_5"))
    if pending:
        session.verify_chain(tiny.tokens(3))
    before = blocks.copied(session.cache)
    with pytest.raises(runtime.RuntimeRefusal, match="recurrent states"):
        runtime.crop_to(session.cache, session.start - 1)
    after = tiny.tensors(session.cache)
    assert all(torch.equal(before[name], after[name]) for name in before)
    runtime.crop_to(session.cache, session.start)
    session.assert_holds([])


def test_lengths_outside_the_cache() -> None:
    session = Session(target("qwen3"))
    for wanted in (-1, session.start + 1):
        with pytest.raises(runtime.RuntimeRefusal, match="cannot crop"):
            runtime.crop_to(session.cache, wanted)
    with pytest.raises(runtime.RuntimeRefusal, match="cannot remove"):
        runtime.roll_back(session.cache, -1)


def test_caches_that_have_dropped_tokens() -> None:
    from transformers import DynamicCache

    model = target("gemma3")
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        tiny.cached(model, tiny.prompt(2 * tiny.WINDOW), cache)
        with pytest.raises(runtime.RuntimeRefusal, match="of 16 tokens"):
            runtime.verify(model, torch.tensor([[1, 2]]), past_key_values=cache)
        with pytest.raises(runtime.RuntimeRefusal, match="of 16 tokens"):
            runtime.crop_to(cache, 10)
