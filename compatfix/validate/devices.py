"""Where a model takes its input, how much memory is free there, and what the device is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from compatfix.introspect.devices import device_of


def input_device(model: nn.Module) -> torch.device:
    """Where a forward wants its tokens: the first device that holds something, or where a dispatched model runs."""
    hook: Any = getattr(model, "_hf_hook", None)
    # A sequence of hooks, where accelerate has added several.
    for one in getattr(hook, "hooks", (hook,)):
        place = getattr(one, "execution_device", None)
        if place is not None:
            return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))


def absent(device: str) -> str | None:
    """Why this machine does not have the device; None where it does."""
    wanted = torch.device(device)
    if device_of(wanted) is not None:
        return None
    kind = wanted.type if wanted.index is None else f"{wanted.type} device number {wanted.index}"
    return f"there is no {kind} here (torch {torch.__version__})"


def best_device() -> str:
    """The accelerator of this machine, or the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on the device; None where that is not known."""
    found = device_of(device)
    return None if found is None else found.free
