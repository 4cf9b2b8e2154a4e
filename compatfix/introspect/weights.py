"""Random weights that show mistakes: large enough that text is diverse, with recurrent states that remember.

At the library's default initialisation recurrent states decay at once and the text repeats itself, so that a corrupted
state stays invisible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

GAIN = 1.3
HEAD_GAIN = 3.0 * GAIN
# Not zero: an oracle may normalise the rows.
SILENCE = 1e-3
# With a tied head the input token's own embedding in the residual stream would win every choice: keep it faint.
TIED_EMBEDDING = 0.05
# Sharper attention: the next token then depends on the whole prompt and not only on the last token.
QUERY_NORM_SHIFT = 1.0
QUERY_NORMS = ("q_norm", "q_layernorm", "query_layernorm")


def reinitialise(model: Any, seed: int, silent_tokens: Iterable[int] = ()) -> None:
    """Fills every parameter from `seed`; `silent_tokens` get logits near zero and so are never the largest."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    with torch.no_grad():
        for path, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                _fill(module, path, name, parameter, generator)
        embedding.weight.copy_(_normal(embedding.weight, TIED_EMBEDDING if tied else GAIN, generator))
        if head is not None:
            if not tied:
                scale = HEAD_GAIN / math.sqrt(head.weight.shape[1])
                head.weight.copy_(_normal(head.weight, scale, generator))
            for token in silent_tokens:
                head.weight[token] *= SILENCE
            if getattr(head, "bias", None) is not None:
                head.bias.zero_()


def _fill(module: nn.Module, path: str, name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    if name == "A_log":
        # Decays of 0.5 % to 15 % a step: states that remember a whole prompt.
        parameter.copy_(
            (torch.rand(parameter.shape, generator=generator, device=generator.device) * 0.15 + 0.005).log()
        )
    elif name == "dt_bias":
        parameter.copy_(_normal(parameter, 0.3, generator) - 1.0)
    elif parameter.ndim >= 2:
        parameter.copy_(_normal(parameter, _scale(module, parameter), generator))
    elif name.endswith("bias"):
        parameter.copy_(_normal(parameter, 0.1, generator))
    else:
        # Norms (around one, or around zero where the class adds one) and gates: shaken, not replaced.
        parameter.add_(_normal(parameter, 0.1, generator))
        if path.endswith(QUERY_NORMS):
            parameter.add_(QUERY_NORM_SHIFT)


def _scale(module: nn.Module, parameter: torch.Tensor) -> float:
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return 0.4 * GAIN
    # Experts are stacked in front; which of the last two sizes is the input differs between classes.
    fan = parameter.shape[-1] if parameter.ndim == 2 else min(parameter.shape[-2:])
    return GAIN / math.sqrt(fan)


def _normal(like: torch.Tensor, scale: float, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=generator, device=generator.device).mul_(scale).to(like.dtype)
