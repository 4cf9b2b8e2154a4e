"""Mamba-2 tree: one forward, in which the state space recurrence goes over the ancestor matrix.

The mixer's own forward runs with two of its parts exchanged (see exchange.py), the causal convolution and the chunked
scan. A commit rebuilds the state from the path's recorded inputs and decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..mamba2_rule import tree_ssd
from ..trees import Tree
from .exchange import CONVS, ExchangeForm, RulePass
from .forms import TreeForms

# What library versions call the scan, as a module global or as an attribute of the mixer.
SCANS = ("mamba_chunk_scan_combined", "mamba2_chunk_scan")


class Mamba2Form(ExchangeForm):
    name = "Mamba-2"
    keeps = ("conv", "recurrent")
    parts = (SCANS, CONVS)

    def begin(self, tree: Tree, states: Mapping[str, Tensor]) -> Mamba2Pass:
        return Mamba2Pass(tree, states)


class Mamba2Tree(TreeForms):
    name = "mamba-2 tree"
    mixer_forms = (Mamba2Form(),)


class Mamba2Pass(RulePass):
    names = SCANS

    def rule(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *_: Any,
        D: Tensor | None = None,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        return_final_states: bool = False,
        **__: Any,
    ) -> Any:
        """In place of mamba2_chunk_scan: x, z (1, N, H, P), dt (1, N, H), A (H,), B, C (1, N, G, S), D (H,) or (H, P).

        `dt_limit` is left out: decoding one token at a time, which is the truth here, does not clamp Δ.
        """
        # Δ in the dtype that decoding computes it in.
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        if dt_softplus:
            dt = F.softplus(dt)
        state = self.states["recurrent"]
        wide = torch.promote_types(x.dtype, torch.float32)
        wide_x, dt, A, B, C = (t.to(wide) for t in (x, dt, A, B, C))
        out, record = tree_ssd(wide_x, dt, A, B, C, self.tree.on(x.device), state.to(wide))
        self.records.append(record)
        if D is not None:
            out = out + wide_x * (D[:, None] if D.ndim == 1 else D).to(wide)
        if z is not None:
            out = out * F.silu(z.to(wide))
        out = out.to(x.dtype).contiguous()
        return (out, state) if return_final_states else out
