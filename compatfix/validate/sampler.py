"""The distribution that a sampler gives: temperature, then top-k, then top-p, as the library's warpers define them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A cut that two right computations may put on different sides of a token: probability mass, and logits.
MASS_MARGIN = 1e-4
LOGIT_MARGIN = 1e-3


@dataclass(frozen=True)
class Sampler:
    """`temperature` > 0; `top_p` in (0, 1], 1 for none; `top_k` >= 0, 0 for none."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0

    def __str__(self) -> str:
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        return ", ".join(parts + ([f"top-k {self.top_k}"] if self.top_k else []))

    def chances(self, logits: Tensor) -> Tensor:
        """Logits (..., V) of any dtype -> probabilities (..., V), float64; what is cut off has exactly 0.

        Top-p keeps the smallest set of most likely tokens whose mass reaches `top_p` (Holtzman et al. 2020,
        arXiv 1904.09751), top-k the k most likely ones and all that equal the last of them.
        """
        scaled = logits.double() / self.temperature
        if 0 < self.top_k < scaled.shape[-1]:
            least = scaled.topk(self.top_k, dim=-1).values[..., -1:]
            scaled = scaled.masked_fill(scaled < least, -torch.inf)
        chances = torch.softmax(scaled, dim=-1)
        if self.top_p < 1:
            ordered, order = chances.sort(dim=-1, descending=True)
            before = ordered.cumsum(-1) - ordered
            ordered = ordered.masked_fill(before >= self.top_p, 0.0)
            chances = torch.zeros_like(chances).scatter(-1, order, ordered)
        return chances / chances.sum(-1, keepdim=True)

    def on_the_edge(self, logits: Tensor) -> Tensor:
        """Logits (..., V) -> bool (...): a cut so close to a token that rounding decides on which side it falls."""
        scaled = logits.double() / self.temperature
        close = torch.zeros(scaled.shape[:-1], dtype=torch.bool, device=scaled.device)
        if 0 < self.top_k < scaled.shape[-1]:
            top = scaled.topk(self.top_k + 1, dim=-1).values
            close |= top[..., -2] - top[..., -1] < LOGIT_MARGIN
        if self.top_p < 1:
            mass = Sampler(self.temperature, top_k=self.top_k).chances(logits).sort(-1, descending=True).values
            close |= ((mass.cumsum(-1) - self.top_p).abs() < MASS_MARGIN).any(-1)
        return close
