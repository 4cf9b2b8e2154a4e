"""Depthwise causal convolution over a tree of tokens. Plain tensor code; inputs are trusted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def tree_conv(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor] | None, windows: Tensor
) -> Tensor:
    """Depthwise causal convolution in which each node sees its own input and those of its nearest ancestors.

    Args: inputs (1, C, L + N), the committed window followed by the nodes; weight (C, K); bias (C,) or None; windows
    (N, K), the places in `inputs` that each node sees, itself last. Returns (1, C, N), in the dtype of `inputs`.
    Fastest where the channels of a token lie side by side in memory.
    """
    # Summed in float32 at least and rounded once, as convolution kernels do. Tokens as rows: whole rows are gathered.
    wide = torch.promote_types(weight.dtype, torch.float32)
    tokens = inputs[0].t().to(weight.dtype).to(wide)
    taps = weight.t().to(wide).contiguous()
    out = tokens.index_select(0, windows[:, 0]) * taps[0]
    for tap in range(1, taps.shape[0]):
        out.addcmul_(tokens.index_select(0, windows[:, tap]), taps[tap])
    if bias is not None:
        out = out + bias.to(wide)
    out = out.to(weight.dtype)
    if activation is not None:
        out = activation(out)
    return out.t()[None].to(inputs.dtype)


def behind(window: Tensor, inputs: Tensor) -> Tensor:
    """(1, C, L + N): the committed window (1, C, L), then inputs (1, C, N), with each token's channels side by side."""
    return torch.cat([window.to(inputs.dtype).transpose(1, 2), inputs.transpose(1, 2)], dim=1).transpose(1, 2)
