"""What a run on a real device was made of: the device, the attention, the functions that layers chose."""

from __future__ import annotations

import types
from typing import Any

from torch import nn

from compatfix.validate.devices import device_name, input_device
from compatfix.validate.plain import text_config


def what_ran(target: nn.Module) -> dict[str, Any]:
    """The device, the attention implementation, and the functions that layers took for their fast paths."""
    return {
        "device": device_name(input_device(target)),
        "attention": str(getattr(text_config(target), "_attn_implementation", None)),
        "functions": chosen_functions(target),
    }


def chosen_functions(target: nn.Module) -> dict[str, str]:
    """Functions that modules hold as attributes of their own, by `Class.attribute`: how layers keep what they chose
    between a fast kernel and its fallback."""
    found = {}
    for module in target.modules():
        for name, value in vars(module).items():
            if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) and not name.startswith("_"):
                found[f"{type(module).__name__}.{name}"] = f"{value.__module__}.{value.__qualname__}"
    return dict(sorted(found.items()))
