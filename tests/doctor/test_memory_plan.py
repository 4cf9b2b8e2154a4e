"""The plan of a run, held against sums made by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from compatfix.memory_plan import Needs, plan_run
from compatfix.profiles import Device

GB = 10**9
# A target of 1000 weights of 2 bytes; 2 layers of 2 heads of 8 for keys and values; a state of 4 × 16 × 16 floats.
NEEDS = Needs(
    weights=2000,
    vocab=100,
    hidden=32 * 2,
    kv_per_token=2 * 2 * 2 * 8 * 2,
    windows=640,
    state=4 * 16 * 16 * 4,
    draft_weights=500,
    draft_kv_per_token=64,
    draft_reads=3,
)
PARTS = {
    "target": 2000,
    "draft": 500,
    "kv": 128 * 10 + 640,
    "states": 4096,
    "draft kv": 64 * 10,
    "tree states": 5 * 4096,
    "hidden needed": 3 * 64 * 10,
    "logits": 5 * 100 * 4,
}


def card(index: int, free: float, total: float = 80) -> Device:
    return Device(f"cuda:{index}", "cuda", int(total * GB), free=int(free * GB))


def memory(free: float) -> Device:
    return Device("cpu", "cpu", int(free * GB), free=int(free * GB))


def test_every_part_by_hand() -> None:
    plan = plan_run(NEEDS, [], context=10, tree_budget=4)
    assert {item.key: item.bytes for item in plan.items} == PARTS
    assert plan.total == sum(PARTS.values()) == 33556
    assert plan.fits is None
    assert plan.verdict == "34 kB needed; no device to hold it against"


@pytest.mark.parametrize(("by_record", "counted"), [(False, "tree states"), (True, "tree records")])
def test_a_state_for_each_node_or_a_record_of_it_counts(by_record: bool, counted: str) -> None:
    needs = Needs(0, 0, 0, state=1000, record_per_node=10, by_record=by_record)
    items = {item.key: item for item in plan_run(needs, [], context=1, tree_budget=9).items}
    assert (items["tree states"].bytes, items["tree records"].bytes) == (10_000, 100)
    assert [key for key in ("tree states", "tree records") if items[key].counted] == [counted]


def test_attention_alone_without_a_draft_has_no_states_and_no_hidden_states() -> None:
    plan = plan_run(Needs(8, 4, 2, kv_per_token=1), [], context=3, tree_budget=1)
    assert [item.key for item in plan.items] == ["target", "kv", "logits"]


@pytest.mark.parametrize(
    ("devices", "verdict"),
    [
        ([card(0, 70)], "fits on cuda:0: 60.0 GB of 70.0 GB free"),
        ([card(0, 50), memory(100)], "fits on cpu: 60.0 GB of 100.0 GB free"),
        ([card(0, 40), card(1, 40)], "fits on 2 cards together (device_map): 60.0 GB of 80.0 GB free"),
        (
            [card(0, 40), memory(20)],
            "does not fit: 22.0 GB short on cuda:0 (60.0 GB needed, 40.0 GB free, 5% kept back)",
        ),
    ],
    ids=["one card", "memory only", "two cards", "nowhere"],
)
def test_where_it_fits_or_what_is_short(devices: list[Device], verdict: str) -> None:
    assert plan_run(Needs(60 * GB, 0, 0), devices, context=1, tree_budget=0).verdict == verdict


def test_what_is_free_counts_and_not_what_there_is() -> None:
    plan = plan_run(Needs(60 * GB, 0, 0), [card(0, 10, total=80)], context=1, tree_budget=0)
    assert [room.short for room in plan.rooms] == [60 * GB - int(9.5 * GB)]


def test_the_edge_is_exact() -> None:
    device = Device("cuda:0", "cuda", 1000, free=1000)
    assert plan_run(Needs(950, 0, 0), [device], context=1, tree_budget=0).fits is not None
    assert plan_run(Needs(951, 0, 0), [device], context=1, tree_budget=0).rooms[0].short == 1


def test_it_needs_no_torch() -> None:
    code = "import sys, compatfix.memory_plan, compatfix.doctor.front; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & set(done.stdout.split())
