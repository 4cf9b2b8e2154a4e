"""The gated delta rule and its causal convolution over a tree of tokens. Plain tensor code; inputs are trusted.

Source: the chunked form of Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks" (arXiv 2412.06464), with the causal
mask replaced by the ancestor matrix of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    u = torch.linalg.solve_triangular(system, v * beta[..., None], upper=False, unitriangular=True)
    w = torch.linalg.solve_triangular(system, k_beta * from_past, upper=False, unitriangular=True)
    writes = u - w @ state
    out = (q * from_past) @ state + ((q @ k.transpose(-1, -2)) * pairwise) @ writes
    return out, DeltaRecord(state, k, writes, decay)


def state_after(record: DeltaRecord, path: Sequence[int]) -> Tensor:
    """The state (B, H, Dk, Dv) after the nodes of `path`, which starts at the root.

    S' = exp(c_i) S + Σ over j in the path of exp(c_i - c_j) k_j n_jᵀ, with i the last node.
    """
    rows = torch.tensor(path, device=record.keys.device)
    decay = record.decay.index_select(-1, rows)
    last = decay[..., -1:]
    keys = record.keys.index_select(-2, rows) * (last - decay).exp()[..., None]
    return record.state * last.exp()[..., None] + keys.transpose(-1, -2) @ record.writes.index_select(-2, rows)


def tree_conv(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor] | None, windows: Tensor
) -> Tensor:
    """Depthwise causal convolution in which each node sees its own input and those of its nearest ancestors.

    Args: inputs (1, C, L + N), the committed window followed by the nodes; weight (C, K); bias (C,) or None; windows
    (N, K), the places in `inputs` that each node sees, itself last. Returns (1, C, N), in the dtype of `inputs`.
    """
    # Summed in float32 and rounded once, as convolution kernels do. Tokens as rows: each gather copies whole rows.
    tokens = inputs[0].t().float()
    seen = tokens.index_select(0, windows.flatten()).view(*windows.shape, inputs.shape[1])  # (N, K, C)
    out = (seen * weight.t().float()).sum(1)
    if bias is not None:
        out = out + bias.float()
    out = out.to(weight.dtype)
    if activation is not None:
        out = activation(out)
    return out.t()[None].to(inputs.dtype)
