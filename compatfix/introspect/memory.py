"""What inspection says of memory: the plan of a run, all hidden states of a prefill, and which cards hold it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from compatfix.memory_plan import RESERVE, cache_items, gigabytes, needs_of, tree_items, weight_items
from compatfix.profiles import Device, DraftProfile, MemoryItem, MemoryPlan, TargetProfile

CARDS_GB = (24, 48, 80)
LONG_PREFILL = 32768


def plan_memory(
    target: TargetProfile,
    draft: DraftProfile | None,
    devices: Sequence[Device],
    *,
    context: int,
    tree_budget: int,
    weight_bytes: float | None = None,
) -> MemoryPlan:
    """Adds up weights, caches, states and hidden states at `context` tokens with a tree of `tree_budget` nodes.

    `weight_bytes` is what the checkpoint stores for a weight where it is quantised.
    """
    needs = needs_of(target, draft, weight_bytes)
    items = [*weight_items(needs), *cache_items(needs, context), *tree_items(needs, tree_budget)]
    items += _hidden_states(target, draft, context)
    total = sum(item.bytes for item in items if item.counted)
    fits, verdicts = _compare(total, devices)
    return MemoryPlan(context, tree_budget, tuple(items), tuple(devices), fits, verdicts)


def _hidden_states(target: TargetProfile, draft: DraftProfile | None, context: int) -> list[MemoryItem]:
    entries = target.num_layers + 1
    one = target.hidden_size * target.dtype_bytes
    needed = len(draft.layer_ids) if draft is not None else 0
    items = []
    for length in dict.fromkeys((context, LONG_PREFILL)):
        all_text = f"hidden states of a prefill of {length} tokens: all {entries} entries"
        counted = length == context
        key = "hidden" if counted else "hidden long"
        items.append(MemoryItem(key, all_text, entries * one * length, counted=counted))
        if needed:
            text = f"hidden states of a prefill of {length} tokens: the {needed} that the draft needs"
            items.append(MemoryItem(f"{key} needed", text, needed * one * length, counted=False))
    return items


def _compare(total: int, devices: Sequence[Device]) -> tuple[bool | None, tuple[str, ...]]:
    verdicts = [_cards(total, card) for card in CARDS_GB]
    if not devices:
        return None, tuple(verdicts)
    present = [device for device in devices if device.kind != "cpu"] or list(devices)
    room = int(sum(device.bytes for device in present) * (1 - RESERVE))
    names = ", ".join(f"{device.name} ({gigabytes(device.bytes)})" for device in present)
    fits = total <= room
    verdicts.insert(0, f"{gigabytes(total)} {'fit' if fits else 'do not fit'} in {names}, {RESERVE:.0%} kept free")
    return fits, tuple(verdicts)


def _cards(total: int, card: int) -> str:
    count = max(1, ceil(total / (card * 1e9 * (1 - RESERVE))))
    if count == 1:
        return f"one {card} GB card holds it"
    words = {2: "two", 3: "three", 4: "four"}
    less = {2: "one does", 3: "two do"}.get(count, f"{count - 1} do")
    return f"{words.get(count, count)} {card} GB cards hold it, {less} not"
