"""Kimi-delta tree: one forward, in which Kimi's delta rule is solved over the ancestors of each node.

As gated-delta tree, with a decay for each key channel: another rule is exchanged, and another state rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..kimi_delta_rule import tree_kimi_delta
from ..trees import Tree
from .exchange import CONVS, ExchangeForm, RulePass
from .forms import TreeForms

# What the library and its kernels call the chunked rule.
RULES = ("chunk_kda", "chunk_kimi_delta_attention")


class KimiDeltaForm(ExchangeForm):
    name = "Kimi's delta rule"
    keeps = ("conv", "recurrent")
    parts = (RULES, CONVS)

    def begin(self, tree: Tree, states: Mapping[str, Tensor]) -> KimiDeltaPass:
        return KimiDeltaPass(tree, states)


class KimiDelta(TreeForms):
    name = "kimi-delta tree"
    mixer_forms = (KimiDeltaForm(),)


class KimiDeltaPass(RulePass):
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
        """In place of chunk_kimi_delta_attention: q, k, g (1, N, H, Dk), v (1, N, H, Dv), beta (1, N, H)."""
        dtype, state = query.dtype, self.states["recurrent"]
        q, k, v, log_decay, strength = (t.transpose(1, 2).float().contiguous() for t in (query, key, value, g, beta))
        if use_qk_l2norm_in_kernel:
            q, k = _l2_normalised(q), _l2_normalised(k)
        q = q * q.shape[-1] ** -0.5
        out, record = tree_kimi_delta(q, k, v, log_decay, strength, lines(self.tree, q.device), state.to(q))
        self.records.append(record)
        return out.transpose(1, 2).to(dtype).contiguous(), state


def lines(tree: Tree, device: Any) -> Tensor:
    """(N, D) long: the D nearest ancestors of each node, itself last, negative above the root."""
    depth = max(tree.depths) + 1
    return tree.windows(depth, depth - 1, device) - (depth - 1)


def _l2_normalised(x: Tensor) -> Tensor:
    return x / (x * x).sum(-1, keepdim=True).add(1e-6).sqrt()
