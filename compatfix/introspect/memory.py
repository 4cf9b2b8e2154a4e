"""What a run needs in memory, added up from shapes, and against which devices. Torch-free arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from compatfix.profiles import Device, DraftProfile, MemoryItem, MemoryPlan, TargetProfile

# What a device keeps for the driver, the allocator and activations.
RESERVE = 0.05
CARDS_GB = (24, 48, 80)
LONG_PREFILL = 32768
GATED_DELTA = "gated-delta"


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
    items = [*_weights(target, draft, weight_bytes), *_caches(target, draft, context)]
    items += _trees(target, tree_budget)
    items += _hidden_states(target, draft, context)
    total = sum(item.bytes for item in items if item.counted)
    fits, verdicts = _compare(total, devices)
    return MemoryPlan(context, tree_budget, tuple(items), tuple(devices), fits, verdicts)


def gigabytes(count: float) -> str:
    """Decimal, as cards are sold: 53.8 GB, 0.27 GB, 12 MB."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    if count >= 0.1e9:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def count_of(parameters: int) -> str:
    """26.9 billion, 150 million, 84 thousand."""
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if parameters >= size:
            return f"{parameters / size:.1f} {word}"
    return str(parameters)


def _weights(target: TargetProfile, draft: DraftProfile | None, weight_bytes: float | None) -> list[MemoryItem]:
    parameters = target.chosen.parameters
    size = int(parameters * (weight_bytes or target.dtype_bytes))
    kind = target.quantised or target.dtype
    items = [MemoryItem("target", f"target weights: {count_of(parameters)} in {kind}", size)]
    if draft is not None:
        text = f"draft weights: {count_of(draft.parameters)} in {draft.dtype}, embeddings and head shared"
        items.append(MemoryItem("draft", text, draft.parameters * draft.dtype_bytes))
    return items


def _caches(target: TargetProfile, draft: DraftProfile | None, context: int) -> list[MemoryItem]:
    items = []
    states = target.states
    if states is not None:
        window = f", sliding windows {gigabytes(states.window_bytes)}" if states.window_bytes else ""
        size = states.kv_per_token * context + states.window_bytes
        items.append(MemoryItem("kv", f"keys and values of {context} tokens{window}", size))
        if states.state:
            items.append(MemoryItem("states", "recurrent and convolution states of one sequence", states.state))
    if draft is not None:
        size = 2 * draft.num_layers * draft.kv_heads * draft.head_dim * draft.dtype_bytes * context
        items.append(MemoryItem("draft kv", f"the draft's keys and values of {context} tokens", size))
    return items


def _trees(target: TargetProfile, budget: int) -> list[MemoryItem]:
    states = target.states
    if states is None or not states.state:
        return []
    per_state = (1 + budget) * states.state
    recorded = (1 + budget) * states.record_per_node
    by_record = bool(states.record_per_node) and GATED_DELTA in (target.strategy or "").replace("_", "-")
    items = [MemoryItem("tree states", f"a state for each of {budget} nodes and the root, as mixer levels keeps them",
                        per_state, counted=not by_record)]  # fmt: skip
    if states.record_per_node:
        text = f"records of {budget} nodes and the root, as the gated-delta tree keeps them"
        items.append(MemoryItem("tree records", text, recorded, counted=by_record))
    return items


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
    present = [device for device in devices if device.kind == "cuda"] or list(devices)
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
