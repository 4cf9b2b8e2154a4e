"""Mixed tree: one forward, in which each mixer runs by the tree form of its own kind.

For models that hold more than one kind of recurrence, or short convolutions beside one.
"""

from __future__ import annotations

from .base import Facts
from .cca import CcaForm
from .conv_tree import ConvForm
from .forms import TreeForms
from .gated_delta import GatedDeltaForm
from .kimi_delta import KimiDeltaForm
from .lightning import LightningForm
from .mamba2 import Mamba2Form


class MixedTree(TreeForms):
    name = "mixed tree"
    mixer_forms = (GatedDeltaForm(), KimiDeltaForm(), Mamba2Form(), LightningForm(), ConvForm(), CcaForm())

    def obstacle(self, facts: Facts) -> str | None:
        reason = super().obstacle(facts)
        if reason is None and len({self.form_of(mixer).name for mixer in facts.mixers.found}) == 1:
            return "all mixers are of one kind, which has a strategy of its own"
        return reason
