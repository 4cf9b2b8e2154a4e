"""Shrinks a draft's config so that it fits a tiny target. Torch-free: dicts in, a dict out.

Rules, each of them reported: layers of every kind stay (at most one of each, at least two); block_size stays, at most
16; layer ids keep their relative depth; the mask token becomes the one that the tiny target reserved; windows stay
larger than a block.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compatfix.introspect.shrink import Ledger, Shrunk, shrink_text
from compatfix.model import Statement

MAX_BLOCK = 16
MIN_LAYERS = 2
NESTED = "dflash_config"


@dataclass(frozen=True)
class TinyDraft:
    """A tiny draft's config as it would stand in its config.json, and what became of the real one's fields."""

    config: dict[str, Any]
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...] | None
    statements: tuple[Statement, ...]


def shrink_draft(draft: Mapping[str, Any], tiny: Shrunk, *, mask_token_id: int | None = None) -> TinyDraft:
    """Fields stay where they were (top or dflash_config); a field that is missing stays missing."""
    config = copy.deepcopy(dict(draft))
    ledger = Ledger()
    mask = tiny.mask_token_id if mask_token_id is None else mask_token_id
    block_size = _shrink_block(config, ledger)
    _shrink_layers(config, ledger)
    shrink_text(config, ledger, hidden=tiny.size["hidden"], window=max(MAX_BLOCK, block_size) + 8)
    config["vocab_size"] = tiny.size["vocab"]
    config["num_target_layers"] = tiny.size["depth"]
    ids = _move_ids(config, tiny.real["depth"], tiny.size["depth"], ledger)
    holder = _holder(config, "mask_token_id")
    if holder is not None:
        holder["mask_token_id"] = mask
        ledger.lose("draft.mask_token_id", f"mask token → {mask}, which the tiny target never emits", mask)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if isinstance(config.get(name), int):
            config[name] = tiny.token_ids.get(config[name])
    return TinyDraft(config, block_size, mask, ids, (*ledger.kept, *ledger.lost))


def draft_for_slice(draft: Mapping[str, Any], layers: int, depth: int) -> TinyDraft:
    """The draft at its real widths for a target cut to `layers` of `depth`: few layers, layer ids moved."""
    config = copy.deepcopy(dict(draft))
    ledger = Ledger()
    block = next((h["block_size"] for h in (config, config.get(NESTED) or {}) if h.get("block_size")), MAX_BLOCK)
    _shrink_layers(config, ledger)
    config["num_target_layers"] = layers
    ids = _move_ids(config, depth, layers, ledger)
    holder = _holder(config, "mask_token_id")
    mask = int(holder["mask_token_id"]) if holder else 0
    return TinyDraft(config, int(block), mask, ids, (*ledger.kept, *ledger.lost))


def _holder(config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The dict that holds a draft's field: the top of the config, or dflash_config, or neither."""
    nested = config.get(NESTED)
    if isinstance(nested, dict) and nested.get(name) is not None:
        return nested
    return config if config.get(name) is not None else None


def _shrink_block(config: dict[str, Any], ledger: Ledger) -> int:
    real: int | None = None
    for holder in (config, config.get(NESTED)):
        if isinstance(holder, dict) and isinstance(holder.get("block_size"), int):
            real = holder["block_size"]
            holder["block_size"] = min(real, MAX_BLOCK)
    if real is None:
        return MAX_BLOCK
    if real <= MAX_BLOCK:
        ledger.keep("draft.block_size", f"draft block size {real}", real)
    else:
        ledger.lose("draft.block_size", f"draft block size {real} → {MAX_BLOCK}", [real, MAX_BLOCK])
    return min(real, MAX_BLOCK)


def _shrink_layers(config: dict[str, Any], ledger: Ledger) -> None:
    depth = config.get("num_hidden_layers")
    if not isinstance(depth, int):
        return
    kinds = config.get("layer_types")
    kinds = kinds if isinstance(kinds, list) and len(kinds) == depth else [None] * depth
    chosen = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    chosen += [i for i in range(depth) if i not in chosen][: max(0, MIN_LAYERS - len(chosen))]
    chosen.sort()
    if kinds != [None] * depth:
        config["layer_types"] = [kinds[i] for i in chosen]
        ledger.keep("draft.layer kinds", f"draft layers: {', '.join(config['layer_types'])}", config["layer_types"])
    config["num_hidden_layers"] = len(chosen)
    if isinstance(config.get("max_window_layers"), int):
        config["max_window_layers"] = min(config["max_window_layers"], len(chosen))
    ledger.lose("draft.depth", f"draft depth {depth} → {len(chosen)}", [depth, len(chosen)])


def _move_ids(config: dict[str, Any], depth: int, tiny_depth: int, ledger: Ledger) -> tuple[int, ...] | None:
    holder = _holder(config, "target_layer_ids")
    if holder is None:
        return None
    real = [int(i) for i in holder["target_layer_ids"]]
    moved = move_layer_ids(real, depth, tiny_depth)
    holder["target_layer_ids"] = list(moved)
    ledger.lose("draft.target_layer_ids", f"layer ids {real} → {list(moved)}, same relative depth", list(moved))
    return moved


def move_layer_ids(ids: list[int], depth: int, tiny_depth: int) -> tuple[int, ...]:
    """Ids at the same relative depth of a shallower target.

    Distinct ids stay distinct where there is room. The last layer's id, whose hidden state has passed the final norm,
    is the last one again and no other id becomes it. Ids beyond the target stay beyond it.
    """
    moved: list[int] = []
    for index in ids:
        if not 0 <= index < depth:
            moved.append(index if index < 0 else tiny_depth + index - depth)
        elif index == depth - 1:
            moved.append(tiny_depth - 1)
        else:
            near = round(index * (tiny_depth - 2) / max(1, depth - 2))
            free = [i for i in range(tiny_depth - 1) if i not in moved] or list(range(tiny_depth - 1)) or [0]
            moved.append(min(free, key=lambda i: (abs(i - near), -i)))
    return tuple(moved)
