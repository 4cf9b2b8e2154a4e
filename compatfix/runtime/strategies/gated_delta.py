"""Gated-delta tree: one forward, in which the gated delta rule is solved over the ancestor matrix.

The mixer's own forward runs with two of its parts exchanged (see exchange.py), the causal convolution and the chunked
rule. A commit rebuilds the state from the path's recorded keys, writes and decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..gated_delta_rule import tree_gated_delta
from ..trees import Tree
from .exchange import CONVS, ExchangeForm, RulePass
from .forms import TreeForms

# What library versions call the chunked rule, as a module global or as an attribute of the mixer.
RULES = ("torch_chunk_gated_delta_rule", "chunk_gated_delta_rule")


class GatedDeltaForm(ExchangeForm):
    name = "gated delta rule"
    keeps = ("conv", "recurrent")
    parts = (RULES, CONVS)

    def begin(self, tree: Tree, states: Mapping[str, Tensor]) -> GatedDeltaPass:
        return GatedDeltaPass(tree, states)


class GatedDelta(TreeForms):
    name = "gated-delta tree"
    mixer_forms = (GatedDeltaForm(),)


class GatedDeltaPass(RulePass):
    names = RULES

    def rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """In place of chunk_gated_delta_rule: q, k (1, N, Hk, Dk), v (1, N, Hv, Dv), g, beta (1, N, Hv)."""
        repeats = value.shape[2] // key.shape[2]  # each key head serves that many value heads in a row
        if repeats > 1:
            query, key = query.repeat_interleave(repeats, dim=2), key.repeat_interleave(repeats, dim=2)
        dtype, state = query.dtype, self.states["recurrent"]
        q, k, v, log_decay, strength = (t.transpose(1, 2).float().contiguous() for t in (query, key, value, g, beta))
        if use_qk_l2norm_in_kernel:
            q, k = l2_normalised(q), l2_normalised(k)
        q = q * q.shape[-1] ** -0.5
        ancestors = self.tree.on(q.device)
        out, record = tree_gated_delta(q, k, v, log_decay, strength, ancestors, state.to(q))
        self.records.append(record)
        return out.transpose(1, 2).to(dtype).contiguous(), state


def l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
