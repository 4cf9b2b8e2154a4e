"""Kimi's delta attention over a tree of tokens: the gated delta rule with a decay for each key channel.

Source: the chunked form of the Kimi Team 2025, "Kimi Linear" (arXiv 2510.26692), with the causal mask replaced by the
ancestors of each node. Plain tensor code; inputs are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Elements of the largest intermediate (heads · N · depth · Dk); more heads than fit take turns.
ROOM = 1 << 20


@dataclass(frozen=True)
class KimiRecord:
    """What a state at any node is rebuilt from.

    state (B, H, Dk, Dv): committed before the block; keys (B, H, N, Dk); writes (B, H, N, Dv): what each node wrote
    (n below); decay (B, H, N, Dk): log-decay summed along the path from the root, the node included. All float32.
    """

    state: Tensor
    keys: Tensor
    writes: Tensor
    decay: Tensor

    def state_after(self, path: Tensor) -> Tensor:
        """The state (1, H, Dk, Dv) after the nodes of `path`, (n,) long, which starts at the root.

        S' = exp(c_i) ∘ S + Σ over j in the path of (exp(c_i - c_j) ∘ k_j) n_jᵀ, with i the last node.
        """
        decay = self.decay.index_select(2, path)
        last = decay[:, :, -1:]
        keys = self.keys.index_select(2, path) * (last - decay).exp()
        written = keys.transpose(-1, -2) @ self.writes.index_select(2, path)
        return torch.addcmul(written, self.state, last.exp().transpose(-1, -2))


def tree_kimi_delta(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, lines: Tensor, state: Tensor
) -> tuple[Tensor, KimiRecord]:
    """Kimi's delta rule over a tree of tokens, in one pass.

    Args: q, k (1, H, N, Dk), L2-normalised, q scaled by Dk**-0.5; v (1, H, N, Dv); log_decay (g) (1, H, N, Dk); beta
    (1, H, N); lines (N, D) long, for each node its D nearest ancestors, itself last, in order, those above the root
    negative, D at least the tokens of the longest path; state (S) (1, H, Dk, Dv). All float32.
    Returns: (1, H, N, Dv) outputs, and the record that a commit needs.

    A decay per channel does not factor out of the product k_i · k_j, and exp(-c_j) alone may overflow. Only ancestors
    matter, so that the sums over channels are taken over D ancestors of each node rather than over N nodes.
    """
    size, depth = lines.shape
    at, absent = lines.clamp(min=0).flatten(), (lines < 0)[:, :, None]
    decay = _along(log_decay, lines)
    in_turn = max(1, ROOM // (size * depth * q.shape[-1]))
    read, asked = [], []
    for own_q, own_k, own_decay in zip(*(torch.split(t, in_turn, dim=1) for t in (q, k, decay)), strict=True):
        # k_j exp(c_i - c_j) for the ancestors j of i: (1, h, N, D, Dk); absent ones are hidden before exp.
        shape = (1, own_k.shape[1], size, depth, -1)
        faded = own_decay[..., None, :] - own_decay.index_select(2, at).view(shape)
        faded = faded.masked_fill_(absent, float("-inf")).exp_() * own_k.index_select(2, at).view(shape)
        # Both products over channels at once: (1, h, N, D, 2).
        both = faded @ torch.stack([own_k, own_q], dim=-1)
        read.append(both[..., 0])
        asked.append(both[..., 1])
    system = _square(torch.cat(read, dim=1), lines) * beta[..., None]
    from_past = decay.exp()
    unread = v * beta[..., None] - (k * beta[..., None] * from_past) @ state
    # T is strictly lower triangular, as ancestors come first; its diagonal is taken as one.
    writes = torch.linalg.solve_triangular(system, unread, upper=False, unitriangular=True)
    out = (q * from_past) @ state + _square(torch.cat(asked, dim=1), lines) @ writes
    return out, KimiRecord(state, k, writes, decay)


def _along(steps: Tensor, lines: Tensor) -> Tensor:
    """Sums of `steps` (1, H, N, Dk) along the path to each node; each pass doubles how many ancestors are summed."""
    total, reach = steps, 1
    while reach < lines.shape[1]:
        at = lines[:, -1 - reach]
        further = total.index_select(2, at.clamp(min=0))
        total = total + further.masked_fill((at < 0)[:, None], 0.0)
        reach *= 2
    return total


def _square(of_lines: Tensor, lines: Tensor) -> Tensor:
    """(1, H, N, D), given for the nodes of `lines`, as (1, H, N, N), zero where a node is no ancestor."""
    size = lines.shape[0]
    # One column more takes what belongs to no node.
    columns = lines.masked_fill(lines < 0, size).expand_as(of_lines)
    return of_lines.new_zeros(*of_lines.shape[:2], size, size + 1).scatter_(-1, columns, of_lines)[..., :size]
