"""Attention masks of a block: read a tree from the caller's mask, build the additive masks that the model gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .refusal import RuntimeRefusal
from .trees import Tree

# Additive masks hide with the smallest value of some dtype; nothing smaller in magnitude than this hides.
HIDDEN = -1e4


def read_tree(mask: Any, start: int, size: int) -> Tree:
    """The tree in the last `size` columns of the caller's mask; no mask means a chain.

    Refuses what is neither: a mask longer or shorter than the keys, values between visible and hidden, a hidden past,
    or a visibility that is no tree.
    """
    if isinstance(mask, dict):
        mask = mask.get("full_attention")
    if mask is None:
        return Tree.chain(size)
    if not isinstance(mask, Tensor):
        raise RuntimeRefusal(f"cannot read a tree from an attention mask of type {type(mask).__name__}")
    if mask.ndim == 2:
        if not bool((mask != 0).all()):
            raise RuntimeRefusal("padding inside a block to verify: the 2D attention mask hides tokens")
        return Tree.chain(size)
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
    # One transfer for everything that the host must see.
    seen = torch.cat([visible[:, start:].flatten(), visible[:, :start].all()[None], clear[None]]).cpu()
    if not bool(seen[-1]):
        raise RuntimeRefusal("malformed attention mask: values that neither show (0) nor hide (large and negative)")
    if not bool(seen[-2]):
        raise RuntimeRefusal("malformed tree mask: the past is not fully visible to every node")
    return Tree.from_visibility(seen[:-2].view(size, size))


def check_positions(position_ids: Any, tree: Tree, start: int) -> None:
    """Refuses positions other than start + depth. Rows of multi-axis positions (M-RoPE) must rise with the depth."""
    if position_ids is None:
        return
    positions = position_ids.detach().cpu().reshape(-1, position_ids.shape[-1])
    depths = torch.tensor(tree.depths)
    if positions.shape[1] != tree.size:
        raise RuntimeRefusal(f"{positions.shape[1]} positions for {tree.size} tokens")
    origin = positions[:, :1] if position_ids.ndim > 2 else torch.full((1, 1), start)
    if not torch.equal(positions, (origin + depths).to(positions.dtype).expand_as(positions)):
        raise RuntimeRefusal(
            f"positions do not follow the tree: expected {start} + depth, got {positions[0].tolist()} "
            f"for depths {list(tree.depths)}"
        )


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
    depths = torch.tensor(tree.depths, device=device)
    at = start + depths
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
