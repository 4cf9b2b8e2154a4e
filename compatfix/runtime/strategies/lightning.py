"""Lightning tree: one forward, in which lightning attention goes over the ancestor matrix.

The library writes the recurrence into the mixer's forward, so that there is no function to exchange: the forward is
written here, from the mixer's own submodules. A mixer that computes anything else is found out by the measurement at
start-up, as with every strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..lightning_rule import LightningRecord, tree_lightning
from ..mixers import Forward, Mixer, innermost
from ..refusal import RuntimeRefusal
from ..slots import Slot
from ..trees import Tree
from .forms import Form, Kept, Pass, TreeForms, plain_forward

SUBMODULES = ("qkv_proj", "norm", "output_gate", "out_proj")


class LightningForm(Form):
    name = "lightning attention"
    keeps = ("linear",)

    def missing(self, mixer: Mixer) -> str | None:
        module: Any = mixer.module
        function = innermost(plain_forward(module)) if plain_forward(module) is not None else None
        if function is None:
            return "its forward has been replaced and cannot be read"
        if "slope_rate" not in function.__code__.co_names:
            return "its forward uses no slope_rate"
        absent = [name for name in SUBMODULES if not isinstance(getattr(module, name, None), nn.Module)]
        if absent or not callable(getattr(module, "act_fn", None)):
            return f"it has no {(absent or ['act_fn'])[0]}"
        heads = getattr(module, "num_attention_heads", None)
        width = getattr(module, "head_dim", None)
        if not isinstance(heads, int) or not isinstance(width, int):
            return "it does not tell num_attention_heads and head_dim"
        slope = getattr(module, "slope_rate", None)
        if not isinstance(slope, Tensor) or slope.shape != (heads, 1, 1):
            return f"its slope_rate is not of the shape ({heads}, 1, 1)"
        if getattr(module.qkv_proj, "out_features", None) != 3 * heads * width:
            return f"its qkv_proj does not give 3 · {heads} · {width} features"
        return None

    def begin(self, tree: Tree, states: Mapping[str, Tensor]) -> LightningPass:
        return LightningPass(tree, states)


class LightningTree(TreeForms):
    name = "lightning tree"
    mixer_forms = (LightningForm(),)


@dataclass(frozen=True)
class LightningKept(Kept):
    record: LightningRecord

    def put(self, slots: Mapping[str, Slot], tree: Tree, path: Sequence[int]) -> None:
        slot = slots["linear"]
        slot.put(self.record.state_after(tree.rows(path, slot.tensor.device)).to(slot.tensor.dtype))


class LightningPass(Pass):
    def __init__(self, tree: Tree, states: Mapping[str, Tensor]) -> None:
        super().__init__(tree, states)
        self.record: LightningRecord | None = None

    def forward(
        self, original: Forward, module: nn.Module, cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """The mixer's output (1, N, width), and the state, as its own forward gives them."""
        hidden: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        parts: Any = module
        activation: Callable[[Tensor], Tensor] = parts.act_fn
        state, size = self.states["linear"], self.tree.size
        mixed = activation(parts.qkv_proj(hidden)).view(1, size, parts.num_attention_heads, -1)
        q, k, v = mixed.transpose(1, 2).float().chunk(3, dim=-1)
        out, self.record = tree_lightning(
            q, k, v, parts.slope_rate.float(), self.tree.depths_on(q.device), self.tree.on(q.device), state.float()
        )
        out = out.transpose(1, 2).reshape(1, size, -1).to(hidden.dtype)
        out = torch.sigmoid(parts.output_gate(hidden)) * parts.norm(out)
        return parts.out_proj(out), state

    def kept(self) -> LightningKept:
        if self.record is None:
            raise RuntimeRefusal("a lightning mixer was left before its recurrence")
        return LightningKept(self.record)
