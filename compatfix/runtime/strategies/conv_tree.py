"""Conv tree: one forward, in which the causal convolution of each node goes over its ancestors.

For mixers that keep a conv window and nothing else (short convolutions). A commit takes, from the recorded inputs, the
window of the accepted node.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..trees import Tree
from .exchange import CONVS, ExchangeForm, ExchangePass
from .forms import TreeForms


class ConvForm(ExchangeForm):
    name = "convolution"
    keeps = ("conv",)
    parts = (CONVS,)

    def begin(self, tree: Tree, states: Mapping[str, Tensor]) -> ExchangePass:
        return ExchangePass(tree, states)


class ConvTree(TreeForms):
    name = "conv tree"
    mixer_forms = (ConvForm(),)
