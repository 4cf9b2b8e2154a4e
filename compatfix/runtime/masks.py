"""Attention masks of a block: read a tree from the caller's mask, build the additive masks that the model gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .refusal import RuntimeRefusal
from .trees import Tree, inspected

# Additive masks hide with the smallest value of some dtype; nothing smaller in magnitude than this hides.
HIDDEN = -1e4


def read_tree(mask: Any, start: int, size: int, position_ids: Any = None) -> Tree:
    """The tree in the last `size` columns of the caller's mask; no mask means a chain.

    Refuses what is neither: a mask longer or shorter than the keys, values between visible and hidden, a hidden past,
    or a visibility that is no tree. Refuses positions other than start + depth; rows of multi-axis positions (M-RoPE)
    must rise with the depth. The host reads once, whatever the size.
    """
    if isinstance(mask, dict):
        masks = [mask.get("full_attention"), *mask.values()]
        mask = next((value for value in masks if isinstance(value, Tensor) and value.ndim == 4), None)
    if mask is not None and not isinstance(mask, Tensor):
        raise RuntimeRefusal(f"cannot read a tree from an attention mask of type {type(mask).__name__}")
    if position_ids is not None and position_ids.shape[-1] != size:
        raise RuntimeRefusal(f"{position_ids.shape[-1]} positions for {size} tokens")
    if mask is None or mask.ndim == 2:
        return _read_chain(mask, start, size, position_ids)
    if mask.ndim != 4 or mask.shape[:3] != (1, 1, size):
        raise RuntimeRefusal(
            f"cannot read a tree from an attention mask of shape {tuple(mask.shape)}; "
            f"expected (1, 1, {size}, {start + size})"
        )
    if mask.shape[3] != start + size:
        raise RuntimeRefusal(
            f"the attention mask has {mask.shape[3]} columns for {start + size} keys ({start} cached, {size} new)"
        )
    rows = mask[0, 0]
    if rows.dtype == torch.bool:
        visible, clear = rows, torch.ones((), dtype=torch.bool, device=rows.device)
    elif rows.dtype.is_floating_point:
        visible = rows == 0
        clear = (visible | (rows <= HIDDEN)).all()
    else:
        raise RuntimeRefusal(f"a 4D attention mask must be bool or additive float, not {rows.dtype}")
    of_nodes = visible[:, start:].clone()  # the caller may write the next tree into the same buffer
    parents, malformed = inspected(of_nodes)
    right = torch.stack([clear, visible[:, :start].all(), _rise(position_ids, of_nodes.sum(-1) - 1, start)])
    # One transfer for everything that the host must see.
    told = torch.cat([parents, malformed.to(parents.dtype), right.to(parents.dtype)]).tolist()
    clear_told, past_told, positions_told = told[-3:]
    if not clear_told:
        raise RuntimeRefusal("malformed attention mask: values that neither show (0) nor hide (large and negative)")
    if not past_told:
        raise RuntimeRefusal("malformed tree mask: the past is not fully visible to every node")
    tree = Tree.seen(of_nodes, parents, told[:-3])
    if not positions_told:
        raise _other_positions(position_ids, tree, start)
    return tree


def _read_chain(mask: Any, start: int, size: int, position_ids: Any) -> Tree:
    tree = Tree.chain(size)
    if mask is None and position_ids is None:
        return tree
    device = (position_ids if mask is None else mask).device
    all_seen = torch.ones((), dtype=torch.bool, device=device) if mask is None else (mask != 0).all()
    seen, positioned = torch.stack([all_seen, _rise(position_ids, torch.arange(size, device=device), start)]).tolist()
    if not seen:
        raise RuntimeRefusal("padding inside a block to verify: the 2D attention mask hides tokens")
    if not positioned:
        raise _other_positions(position_ids, tree, start)
    return tree


def _rise(position_ids: Any, depths: Tensor, start: int) -> Tensor:
    """() bool on the device of `depths` (N,): whether the positions are start + depth."""
    if position_ids is None:
        return torch.ones((), dtype=torch.bool, device=depths.device)
    positions = position_ids.detach().to(depths.device).reshape(-1, position_ids.shape[-1])
    # Each axis of an image prompt's positions has an origin of its own.
    origin = positions[:, :1] if position_ids.ndim > 2 else start
    right: Tensor = (positions == (origin + depths).to(positions.dtype)).all()
    return right


def _other_positions(position_ids: Any, tree: Tree, start: int) -> RuntimeRefusal:
    positions = position_ids.reshape(-1, position_ids.shape[-1])[0].tolist()
    return RuntimeRefusal(
        f"positions do not follow the tree: expected {start} + depth, got {positions} for depths {list(tree.depths)}"
    )


def is_causal(mask: Tensor) -> bool:
    """Whether an additive mask (1, 1, N, N) shows each token all before it and itself, and no more."""
    visible = mask[0, 0] == 0
    return visible.shape[0] == visible.shape[1] and bool((visible == torch.ones_like(visible).tril()).all())


def additive(mask: Any, dtype: torch.dtype) -> Any:
    """Bool 4D masks as additive float ones, which every attention implementation understands; others unchanged."""
    if isinstance(mask, dict):
        return {key: additive(value, dtype) for key, value in mask.items()}
    if not isinstance(mask, Tensor) or mask.ndim != 4 or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def tree_masks(config: Any, tree: Tree, start: int, dtype: torch.dtype, device: torch.device) -> Any:
    """The additive mask of `tree` behind `start` tokens: (1, 1, N, start + N), or a dict of them by layer type.

    A dict is needed where layers see different pasts. Windows count positions, so two nodes of one depth are equally
    far from the past.
    """
    kinds = set(getattr(config, "layer_types", None) or [])
    window: Any = getattr(config, "sliding_window", None)
    chunk: Any = getattr(config, "attention_chunk_size", None)
    full = torch.ones(tree.size, start + tree.size, dtype=torch.bool, device=device)
    full[:, start:] = tree.on(device)
    at = start + tree.depths_on(device)
    keys_at = torch.cat([torch.arange(start, device=device), at])

    def windowed() -> Tensor:
        seen: Tensor = full & (at[:, None] - keys_at[None] < window)
        return seen

    def chunked() -> Tensor:
        seen: Tensor = full & ((at // chunk)[:, None] == (keys_at // chunk)[None])
        return seen

    def as_mask(visible: Tensor) -> Tensor:
        hidden = torch.finfo(dtype).min
        return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill(~visible, hidden)[None, None]

    if not kinds:
        return as_mask(windowed() if window else full)
    if not kinds & {"sliding_attention", "chunked_attention"}:
        return as_mask(full)
    masks: dict[str, Tensor | None] = {}
    for kind in kinds | {"full_attention"}:
        if kind == "sliding_attention":
            masks[kind] = as_mask(windowed())
        elif kind == "chunked_attention":
            masks[kind] = as_mask(chunked())
        else:
            # Recurrent and conv layers take a padding mask or none.
            masks[kind] = as_mask(full) if "attention" in kind and kind != "linear_attention" else None
    return masks
