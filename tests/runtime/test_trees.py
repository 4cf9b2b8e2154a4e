"""Trees read from masks, and the schedules that take a mixer through them, against plain loops over nodes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import compatfix.runtime as runtime
from compatfix.runtime.masks import read_tree
from compatfix.runtime.schedules import Schedule, by_levels, depth_first, states_alive, width_within
from compatfix.runtime.trees import Tree

from . import blocks
from .blocks import BUSHY, CHAIN, DEEP_WITH_SIBLINGS, path_to

CPU = torch.device("cpu")


@st.composite
def trees(draw: st.DrawFn, most: int = 40) -> tuple[int, ...]:
    """Parents before children, in any other order."""
    size = draw(st.integers(1, most))
    return (-1, *(draw(st.integers(0, node - 1)) for node in range(1, size)))


def visible(parents: tuple[int, ...]) -> torch.Tensor:
    return blocks.mask(parents, 0, torch.bool)[0, 0]


@settings(max_examples=60, deadline=None)
@given(trees())
def test_a_tree_is_read_from_who_sees_whom(parents: tuple[int, ...]) -> None:
    tree = Tree.from_visibility(visible(parents))
    assert tree.parents == parents
    assert torch.equal(tree.on(CPU), visible(parents))
    assert tree.depths_on(CPU).tolist() == blocks.depths(parents) == list(tree.depths)
    assert tree.parents_on(CPU).tolist() == list(parents)


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(1, 5))
def test_index_tensors_follow_from_the_parents_alone(parents: tuple[int, ...], width: int) -> None:
    tree = Tree(parents)
    assert torch.equal(tree.ancestors, visible(parents))
    windows = tree.windows(width, 7, CPU)
    for node in range(len(parents)):
        line = [*range(7), *(7 + ancestor for ancestor in path_to(parents, node))]
        assert windows[node].tolist() == line[-width:]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parents", [CHAIN, DEEP_WITH_SIBLINGS, BUSHY, (-1,)], ids=len)
def test_a_tree_stays_as_read_when_the_callers_buffer_is_written_to(
    parents: tuple[int, ...], dtype: torch.dtype
) -> None:
    mask = blocks.mask(parents, 5, dtype)
    tree = read_tree(mask, 5, len(parents), blocks.positions(parents, 5))
    mask.fill_(1)
    assert tree.parents == parents
    assert torch.equal(tree.on(CPU), visible(parents))


def test_positions_of_several_axes_rise_with_the_depth() -> None:
    origins = torch.tensor([5, 3, 9])[:, None, None]
    depths = torch.tensor(blocks.depths(BUSHY))
    assert read_tree(blocks.mask(BUSHY, 5), 5, 24, origins + depths).parents == BUSHY
    with pytest.raises(runtime.RuntimeRefusal, match="positions do not follow the tree"):
        read_tree(blocks.mask(BUSHY, 5), 5, 24, origins + torch.arange(24))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda m: m.__setitem__((3, 3), False), "does not see itself"),
        (lambda m: m.__setitem__((1, 4), True), "sees a later one"),
        (lambda m: m.__setitem__((6, slice(0, 6)), False), "more than one root"),
        (lambda m: m.__setitem__((10, 0), False), "not transitive"),
        (lambda m: m.__setitem__((10, 8), True), "not transitive"),
    ],
    ids=["itself", "later", "root", "a gap", "a cousin"],
)
def test_what_is_no_tree_is_refused(spoil, message: str) -> None:  # type: ignore[no-untyped-def]
    matrix = visible(DEEP_WITH_SIBLINGS)
    spoil(matrix)
    with pytest.raises(runtime.RuntimeRefusal, match=message):
        Tree.from_visibility(matrix)


@pytest.mark.parametrize(
    ("mask", "positions", "message"),
    [
        (torch.zeros(1, 1, 2, 6), None, "not fully visible|sees a later one"),
        (torch.full((1, 1, 2, 6), -1.0).tril(), None, "neither show"),
        (torch.zeros(1, 1, 2, 7), None, "7 columns for 6 keys"),
        (torch.ones(1, 6).tril(-1), None, "padding inside a block"),
        (None, torch.tensor([[4, 6]]), r"expected 4 \+ depth, got \[4, 6\]"),
        (torch.ones(1, 6), torch.tensor([[4, 4]]), r"got \[4, 4\]"),
        (None, torch.tensor([[4, 5, 6]]), "3 positions for 2 tokens"),
    ],
    ids=["siblings", "between", "columns", "padding", "gap", "2D", "too many"],
)
def test_masks_and_positions_that_do_not_fit_are_refused(mask, positions, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(runtime.RuntimeRefusal, match=message):
        read_tree(mask, 4, 2, positions)


# ---- schedules


def alive_at_each_step(schedule: Schedule, parents: tuple[int, ...]) -> list[int]:
    """Walks a schedule by hand: states held while each step runs, its own and the copy being updated counted."""
    held: dict[int, tuple[int, ...]] = {}
    counts, before = [], 0
    for index, step in enumerate(schedule.steps):
        above = (-1,) if step.parent < 0 else held[step.parent]
        assert [above[row] for row in step.rows] == [parents[node] for node in step.nodes]
        counts.append(sum(len(nodes) for nodes in held.values()) + len(step.nodes) + max(len(step.nodes), before))
        held[index] = step.nodes
        # The slots hold the last step's states until the next step's are put there.
        before = len(step.nodes) if index in step.spent else 0
        for spent in step.spent:
            del held[spent]
    assert not held or not any(step.spent for step in schedule.steps)
    return counts


@settings(max_examples=80, deadline=None)
@given(trees(), st.integers(1, 12))
def test_depth_first_finds_every_parent_and_keeps_few_states(parents: tuple[int, ...], width: int) -> None:
    tree, schedule = Tree(parents), depth_first(Tree(parents), width)
    assert sorted(node for step in schedule.steps for node in step.nodes) == list(range(len(parents)))
    assert all(len(step.nodes) <= width for step in schedule.steps)
    assert all(len({tree.depths[node] for node in step.nodes}) == 1 for step in schedule.steps)
    assert max(alive_at_each_step(schedule, parents)) <= states_alive(tree, width)
    assert sorted(spent for step in schedule.steps for spent in step.spent) == list(range(len(schedule.steps)))


@settings(max_examples=40, deadline=None)
@given(trees())
def test_levels_are_taken_in_turn_and_kept(parents: tuple[int, ...]) -> None:
    schedule = by_levels(Tree(parents))
    alive_at_each_step(schedule, parents)
    assert [set(step.nodes) for step in schedule.steps] == [
        {node for node, depth in enumerate(blocks.depths(parents)) if depth == level}
        for level in range(max(blocks.depths(parents)) + 1)
    ]
    assert not any(step.spent for step in schedule.steps)


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 60))
def test_the_widest_steps_that_fit_are_taken(parents: tuple[int, ...], states: int) -> None:
    tree = Tree(parents)
    fitting = [width for width in range(1, len(parents) + 1) if states_alive(tree, width) <= states]
    widest = max(len(level) for level in tree.levels)
    assert width_within(tree, states) == (min(max(fitting), widest) if fitting else 0)


@pytest.mark.parametrize("width", [1, 3, 24])
def test_index_tensors_of_a_schedule_say_what_its_steps_say(width: int) -> None:
    schedule = depth_first(Tree(BUSHY), width)
    assert [(nodes.tolist(), rows.tolist()) for nodes, rows in schedule.on(CPU)] == [
        (list(step.nodes), list(step.rows)) for step in schedule.steps
    ]
    laid = [node for step in schedule.steps for node in step.nodes]
    assert [laid[at] for at in schedule.order(CPU).tolist()] == list(range(len(BUSHY)))
    for node in range(len(BUSHY)):
        step, row = schedule.place(node)
        assert schedule.steps[step].nodes[row] == node
