"""Lightning attention over a tree of tokens: linear attention with one fixed decay per head.

Source: the tiled form of Qin et al. 2024, "Lightning Attention-2" (arXiv 2401.04658), with the causal mask replaced by
the ancestor matrix of the tree. Plain tensor code; inputs are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LightningRecord:
    """What a state at any node is rebuilt from.

    state (B, H, D, D): committed before the block; keys, values (B, H, N, D); slope (H, 1, 1): a token's decay is
    exp(-slope). All float32.
    """

    state: Tensor
    keys: Tensor
    values: Tensor
    slope: Tensor

    def state_after(self, path: Tensor) -> Tensor:
        """The state (B, H, D, D) after the nodes of `path`, (n,) long, which starts at the root.

        S' = λ^n S + Σ over j in the path of λ^(n - 1 - d_j) k_j v_jᵀ, with n nodes in the path and d_j = 0 … n - 1.
        """
        count = path.shape[0]
        left = torch.arange(count - 1, -1, -1, dtype=self.keys.dtype, device=path.device)[:, None]
        keys = self.keys.index_select(2, path) * (-self.slope * left).exp()
        written = keys.transpose(-1, -2) @ self.values.index_select(2, path)
        return torch.addcmul(written, self.state, (-self.slope * count).exp())


def tree_lightning(
    q: Tensor, k: Tensor, v: Tensor, slope: Tensor, depths: Tensor, ancestors: Tensor, state: Tensor
) -> tuple[Tensor, LightningRecord]:
    """Lightning attention over a tree of tokens, in one pass.

    Args: q, k, v (B, H, N, D); slope (λ = exp(-slope)) (H, 1, 1); depths (N,) long, 0 for the root; ancestors (N, N)
    bool, row i true at i and its ancestors; state (S) (B, H, D, D). All float32 except depths and ancestors.
    Returns: (B, H, N, D) outputs, and the record that a commit needs.
    """
    apart = (depths[:, None] - depths[None]).to(q.dtype)
    # λ^(d_i - d_j) where j is an ancestor of i, else 0; hidden before exp, where it could overflow.
    pairwise = (-slope * apart).masked_fill(~ancestors, float("-inf")).exp()
    from_past = (-slope * (depths + 1).to(q.dtype)[:, None]).exp()
    out = (q * from_past) @ state + ((q @ k.transpose(-1, -2)) * pairwise) @ v
    return out, LightningRecord(state, k, v, slope)
