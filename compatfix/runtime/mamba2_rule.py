"""The recurrence of Mamba-2 over a tree of tokens. Plain tensor code; inputs are trusted.

Source: the quadratic ("dual") form of Dao and Gu 2024, "Transformers are SSMs" (arXiv 2405.21060), with the causal mask
replaced by the ancestor matrix of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SsdRecord:
    """What a state at any node is rebuilt from.

    state (B, H, P, S): committed before the block; written (B, H, N, P): Δx of each node; keys (B, G, N, S): its B;
    decay (B, H, N): log-decay summed along the path from the root, the node included. All float32.
    """

    state: Tensor
    written: Tensor
    keys: Tensor
    decay: Tensor

    def state_after(self, path: Tensor) -> Tensor:
        """The state (B, H, P, S) after the nodes of `path`, (n,) long, which starts at the root.

        S' = exp(c_i) S + Σ over j in the path of exp(c_i - c_j) Δ_j x_j B_jᵀ, with i the last node.
        """
        decay = self.decay.index_select(-1, path)
        last = decay[..., -1:]
        written = self.written.index_select(-2, path) * (last - decay).exp()[..., None]
        keys = self.keys.index_select(-2, path)
        # Heads of a group share its B, so that they are written by one product per group: (B, G, H/G · P, S).
        batch, groups, count = keys.shape[:3]
        columns = written.transpose(-1, -2).reshape(batch, groups, -1, count)
        return torch.addcmul((columns @ keys).view_as(self.state), self.state, last.exp()[..., None])


def tree_ssd(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, ancestors: Tensor, state: Tensor
) -> tuple[Tensor, SsdRecord]:
    """Mamba-2's state space over a tree of tokens, in one pass; without the skip D x.

    Args: x (B, N, H, P); dt (Δ, after softplus) (B, N, H); a (H,), negative; b, c (B, N, G, S), a group serves H / G
    heads in a row; ancestors (N, N) bool, row i true at i and its ancestors; state (S) (B, H, P, S). All float32.
    Returns: (B, N, H, P) outputs, and the record that a commit needs.
    """
    batch, size, heads, width = x.shape
    groups, per_group = b.shape[2], x.shape[2] // b.shape[2]
    written = (x * dt[..., None]).transpose(1, 2)
    keys, queries = b.transpose(1, 2), c.transpose(1, 2)
    # c_i: sum of Δ a over the path to i, exact sums rather than a product that a GPU may round (TF32).
    decay = ((dt * a).transpose(1, 2)[..., None, :] * ancestors).sum(-1)
    # D_ij = exp(c_i - c_j) where j is an ancestor of i, else 0; hidden before exp, where it could overflow.
    pairwise = (decay[..., :, None] - decay[..., None, :]).masked_fill(~ancestors, float("-inf")).exp()
    scores = (queries @ keys.transpose(-1, -2))[:, :, None] * pairwise.view(batch, groups, per_group, size, size)
    within = scores.view(batch, heads, size, size) @ written
    # Heads of a group share its C, so that the past is read by one product per group: (B, G, N, H/G · P).
    past = queries @ state.reshape(batch, groups, per_group * width, -1).transpose(-1, -2)
    past = past.view(batch, groups, size, per_group, width).transpose(2, 3).reshape(batch, heads, size, width)
    out = within + past * decay.exp()[..., None]
    return out.transpose(1, 2), SsdRecord(state, written, keys, decay)
