"""The gated delta rule over a tree of tokens. Plain tensor code; inputs are trusted.

Source: the chunked form of Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks" (arXiv 2412.06464), with the causal
mask replaced by the ancestor matrix of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DeltaRecord:
    """What a state at any node is rebuilt from.

    state (B, H, Dk, Dv): committed before the block; keys (B, H, N, Dk); writes (B, H, N, Dv): what each node wrote
    (n below); decay (B, H, N): log-decay summed along the path from the root, the node included. All float32.
    """

    state: Tensor
    keys: Tensor
    writes: Tensor
    decay: Tensor

    def state_after(self, path: Tensor) -> Tensor:
        """The state (B, H, Dk, Dv) after the nodes of `path`, (n,) long, which starts at the root.

        S' = exp(c_i) S + Σ over j in the path of exp(c_i - c_j) k_j n_jᵀ, with i the last node.
        """
        decay = self.decay.index_select(-1, path)
        last = decay[..., -1:]
        keys = self.keys.index_select(-2, path) * (last - decay).exp()[..., None]
        written = keys.transpose(-1, -2) @ self.writes.index_select(-2, path)
        return torch.addcmul(written, self.state, last.exp()[..., None])


def tree_gated_delta(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor, state: Tensor
) -> tuple[Tensor, DeltaRecord]:
    """Gated delta rule over a tree of tokens, in one pass.

    Args: q, k (B, H, N, Dk), L2-normalised, q scaled by Dk**-0.5; v (B, H, N, Dv); log_decay (g), beta (B, H, N);
    ancestors (N, N) bool, row i true at i and its ancestors, nodes in topological order; state (S) (B, H, Dk, Dv).
    All float32. Returns: (B, H, N, Dv) outputs, and the record that a commit needs.
    """
    # c_i: sum of g over the path to i, exact sums rather than a product that a GPU may round (TF32).
    decay = (log_decay[..., None, :] * ancestors).sum(-1)
    # D_ij = exp(c_i - c_j) where j is an ancestor of i, else 0; hidden before exp, where it could overflow.
    pairwise = (decay[..., :, None] - decay[..., None, :]).masked_fill(~ancestors, float("-inf")).exp()
    from_past = decay.exp()[..., None]
    k_beta = k * beta[..., None]
    # T = (βk kᵀ) ∘ D with a unit diagonal; ancestors come first, so it is lower triangular.
    system = (k_beta @ k.transpose(-1, -2)) * pairwise
    unread = v * beta[..., None] - (k_beta * from_past) @ state
    writes = torch.linalg.solve_triangular(system, unread, upper=False, unitriangular=True)
    out = (q * from_past) @ state + ((q @ k.transpose(-1, -2)) * pairwise) @ writes
    return out, DeltaRecord(state, k, writes, decay)
