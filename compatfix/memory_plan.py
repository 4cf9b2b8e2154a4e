"""What a run needs in memory, from plain numbers, and where it fits. Pure: no torch, nothing is looked up.

needs = needs_of(target, draft)          # or Needs(…) with numbers of your own
plan = plan_run(needs, devices, context=4096, tree_budget=64)
plan.verdict                             # "fits on cuda:0 …: 61.2 GB of 80.0 GB free", or how much is short
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compatfix.profiles import Device, DraftProfile, MemoryItem, TargetProfile

# What a device keeps for the driver, the allocator and activations.
RESERVE = 0.05
# Logits are compared and sampled in float32.
LOGIT_BYTES = 4
GATED_DELTA = "gated-delta"


@dataclass(frozen=True)
class Needs:
    """What is known of a target and its draft, in bytes and counts.

    `kv_per_token` grows with the text, `windows` are sliding windows that are full, `state` is what recurrent and
    convolution layers keep of one sequence. `record_per_node` is what a gated-delta tree records of a node in place of
    a whole state, and `by_record` whether the strategy in use does so. `hidden` is one hidden state of one token.
    """

    weights: int
    vocab: int
    hidden: int
    kv_per_token: int = 0
    windows: int = 0
    state: int = 0
    record_per_node: int = 0
    by_record: bool = False
    draft_weights: int = 0
    draft_kv_per_token: int = 0
    draft_reads: int = 0
    weights_text: str = "target weights"
    draft_text: str = "draft weights"


@dataclass(frozen=True)
class Room:
    """A place that the plan was held against: what is free there, and what is missing (0 where the plan fits)."""

    where: str
    kind: str
    free: int
    short: int


@dataclass(frozen=True)
class RunPlan:
    """What a run needs at `context` tokens with a tree of `tree_budget` nodes, and every place it was held against."""

    context: int
    tree_budget: int
    items: tuple[MemoryItem, ...]
    rooms: tuple[Room, ...]

    @property
    def total(self) -> int:
        return sum(item.bytes for item in self.items if item.counted)

    @property
    def fits(self) -> Room | None:
        """The first place that holds it."""
        return next((room for room in self.rooms if not room.short), None)

    @property
    def accelerated(self) -> Room | None:
        """The first place with an accelerator that holds it."""
        return next((room for room in self.rooms if room.kind != "cpu" and not room.short), None)

    @property
    def verdict(self) -> str:
        if not self.rooms:
            return f"{gigabytes(self.total)} needed; no device to hold it against"
        room = self.fits
        if room is not None:
            return f"fits on {room.where}: {gigabytes(self.total)} of {gigabytes(room.free)} free"
        nearest = min(self.rooms, key=lambda entry: entry.short)
        return (
            f"does not fit: {gigabytes(nearest.short)} short on {nearest.where} "
            f"({gigabytes(self.total)} needed, {gigabytes(nearest.free)} free, {RESERVE:.0%} kept back)"
        )


def plan_run(needs: Needs, devices: Sequence[Device], *, context: int, tree_budget: int) -> RunPlan:
    """Adds up what a run needs and holds it against each device, and against accelerators of a kind together."""
    items = [
        *weight_items(needs),
        *cache_items(needs, context),
        *tree_items(needs, tree_budget),
        *_hidden_states(needs, context),
    ]
    size = (1 + tree_budget) * needs.vocab * LOGIT_BYTES
    items.append(MemoryItem("logits", f"logits of {tree_budget} nodes and the root: {needs.vocab} in float32", size))
    total = sum(item.bytes for item in items if item.counted)
    return RunPlan(context, tree_budget, tuple(items), tuple(_rooms(total, devices)))


def needs_of(target: TargetProfile, draft: DraftProfile | None, weight_bytes: float | None = None) -> Needs:
    """The numbers of two profiles; `weight_bytes` is what the checkpoint stores for a weight where it is quantised."""
    parameters = target.chosen.parameters
    states = target.states
    needs = Needs(
        weights=int(parameters * (weight_bytes or target.dtype_bytes)),
        vocab=target.vocab_size,
        hidden=target.hidden_size * target.dtype_bytes,
        kv_per_token=states.kv_per_token if states else 0,
        windows=states.window_bytes if states else 0,
        state=states.state if states else 0,
        record_per_node=states.record_per_node if states else 0,
        by_record=GATED_DELTA in (target.strategy or "").replace("_", "-"),
        weights_text=f"target weights: {count_of(parameters)} in {target.quantised or target.dtype}",
    )
    if draft is None:
        return needs
    return replace(
        needs,
        draft_weights=draft.parameters * draft.dtype_bytes,
        draft_kv_per_token=2 * draft.num_layers * draft.kv_heads * draft.head_dim * draft.dtype_bytes,
        draft_reads=len(draft.layer_ids),
        draft_text=f"draft weights: {count_of(draft.parameters)} in {draft.dtype}, embeddings and head shared",
    )


def weight_items(needs: Needs) -> list[MemoryItem]:
    items = [MemoryItem("target", needs.weights_text, needs.weights)]
    if needs.draft_weights:
        items.append(MemoryItem("draft", needs.draft_text, needs.draft_weights))
    return items


def cache_items(needs: Needs, context: int) -> list[MemoryItem]:
    items = []
    size = needs.kv_per_token * context + needs.windows
    if size:
        window = f", sliding windows {gigabytes(needs.windows)}" if needs.windows else ""
        items.append(MemoryItem("kv", f"keys and values of {context} tokens{window}", size))
    if needs.state:
        items.append(MemoryItem("states", "recurrent and convolution states of one sequence", needs.state))
    if needs.draft_kv_per_token:
        size = needs.draft_kv_per_token * context
        items.append(MemoryItem("draft kv", f"the draft's keys and values of {context} tokens", size))
    return items


def tree_items(needs: Needs, budget: int) -> list[MemoryItem]:
    """What verification keeps of a tree: a state for each node, or a record where the strategy needs no more."""
    if not needs.state:
        return []
    by_record = needs.by_record and bool(needs.record_per_node)
    text = f"a state for each of {budget} nodes and the root, as mixer levels keeps them"
    items = [MemoryItem("tree states", text, (1 + budget) * needs.state, counted=not by_record)]
    if needs.record_per_node:
        text = f"records of {budget} nodes and the root, as the gated-delta tree keeps them"
        items.append(MemoryItem("tree records", text, (1 + budget) * needs.record_per_node, counted=by_record))
    return items


def _hidden_states(needs: Needs, context: int) -> list[MemoryItem]:
    if not needs.draft_reads:
        return []
    text = f"hidden states of a prefill of {context} tokens: the {needs.draft_reads} that the draft reads"
    return [MemoryItem("hidden needed", text, needs.draft_reads * needs.hidden * context)]


def _rooms(total: int, devices: Sequence[Device]) -> list[Room]:
    rooms = [_room(device.name, device.kind, _free(device), total) for device in devices if device.kind != "cpu"]
    cards = [device for device in devices if device.kind == "cuda"]
    if len(cards) > 1:
        rooms.append(_room(f"{len(cards)} cards together (device_map)", "cuda", sum(map(_free, cards)), total))
    return [*rooms, *(_room(device.name, "cpu", _free(device), total) for device in devices if device.kind == "cpu")]


def _room(where: str, kind: str, free: int, total: int) -> Room:
    return Room(where, kind, free, max(0, total - int(free * (1 - RESERVE))))


def _free(device: Device) -> int:
    return device.bytes if device.free is None else device.free


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
