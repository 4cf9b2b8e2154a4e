"""Cca tree: one forward, in which compressed convolutional attention takes each node's neighbours from its ancestors.

Such a mixer (arXiv 2510.04476) sends queries and keys through two convolutions in a row, and takes half of each value
at the token before. Nothing recurs: a node needs its nearest ancestors' inputs, and one projection of its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..mixers import Forward, Mixer
from ..refusal import RuntimeRefusal
from ..slots import Slot
from ..tree_conv import behind
from ..trees import Tree
from .exchange import ConvKept, ExchangeForm, ExchangePass, Part
from .forms import Kept, TreeForms

FIRST, SECOND, DELAYED = "conv_qk_depthwise", "conv_qk_grouped", "v_proj_delayed"


class CcaForm(ExchangeForm):
    name = "compressed convolutional attention"
    keeps = ("conv", "recurrent")
    parts = ((FIRST,), (SECOND,), (DELAYED,))

    def missing(self, mixer: Mixer) -> str | None:
        reason = super().missing(mixer)
        if reason is None:
            for name in (FIRST, SECOND):
                conv = getattr(mixer.module, name, None)
                if not isinstance(conv, nn.Conv1d) or conv.stride != (1,) or conv.dilation != (1,) or any(conv.padding):
                    return f"its {name} is no plain convolution without padding"
        return reason

    def begin(self, tree: Tree, states: Mapping[str, Tensor]) -> CcaPass:
        return CcaPass(tree, states)


class CcaTree(TreeForms):
    name = "cca tree"
    mixer_forms = (CcaForm(),)


@dataclass(frozen=True)
class CcaKept(ConvKept):
    delayed: Tensor  # (1, N, width): what each node leaves to its children's values

    def put(self, slots: Mapping[str, Slot], tree: Tree, path: Sequence[int]) -> None:
        slot = slots["recurrent"]
        slot.put(self.delayed[:, path[-1]].to(slot.tensor.dtype).clone())
        super().put(slots, tree, path)


class CcaPass(ExchangePass):
    """The three submodules that look at other tokens, each over the tree: the mixer's own, with their hooks."""

    def __init__(self, tree: Tree, states: Mapping[str, Tensor]) -> None:
        super().__init__(tree, states)
        self.module: Any = None
        self.delayed: list[Tensor] = []

    def forward(
        self, original: Forward, module: nn.Module, cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        self.module = module
        return super().forward(original, module, cache, args, kwargs)

    def exchanged(self) -> dict[str, Part]:
        return {FIRST: self._first, SECOND: self._second, DELAYED: self._from_parents}

    def _first(self, x: Tensor) -> Tensor:
        """(1, C, L + N), the committed window and the nodes, to (1, C, K - 1 + N), K the width of the second one."""
        size, device = self.tree.size, x.device
        x = behind(x[..., :-size], x[..., -size:])
        self.inputs.append(x)
        conv, past = self.module.conv_qk_depthwise, x.shape[-1] - size
        width, reach = conv.kernel_size[0], self.module.conv_qk_grouped.kernel_size[0] - 1
        if past != width - 1 + reach:
            raise RuntimeRefusal(f"a window of {past} inputs for convolutions of {width} and {reach + 1}")
        before = torch.arange(reach, device=device)[:, None] + torch.arange(width, device=device)
        return _over(conv, x, torch.cat([before, self.tree.windows(width, past, device)]))

    def _second(self, x: Tensor) -> Tensor:
        conv = self.module.conv_qk_grouped
        width = conv.kernel_size[0]
        return _over(conv, x, self.tree.windows(width, x.shape[-1] - self.tree.size, x.device))

    def _from_parents(self, hidden: Tensor) -> Tensor:
        """Each node's projection at the place before that of each of its children.

        The mixer takes, for the value of token i, the projection of token i - 1, and for the first the committed one.
        """
        delayed: Tensor = self.module.v_proj_delayed(hidden)
        self.delayed.append(delayed)
        parents = self.tree.parents_on(hidden.device)
        return delayed.index_select(1, torch.cat([parents[1:], parents[:1].clamp(min=0)]))

    def kept(self) -> Kept:
        if len(self.inputs) != 1 or len(self.delayed) != 1:
            raise RuntimeRefusal(
                f"a mixer called its convolution {len(self.inputs)} times and its delayed projection "
                f"{len(self.delayed)} times; once was expected"
            )
        return CcaKept(self.inputs[0], self.delayed[0])


def _over(conv: Callable[[Tensor], Tensor], x: Tensor, windows: Tensor) -> Tensor:
    """(1, C', n): a convolution at n places of x (1, C, T), each seeing the columns of its row of windows (n, K)."""
    rows = x[0].t()[windows]  # (n, K, C)
    return conv(rows.transpose(1, 2))[..., 0].t()[None]
