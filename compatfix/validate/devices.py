"""Where a model takes its input, how much memory is free there, and what the device is called."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn


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
    counts = {"cpu": 1, "mps": int(torch.backends.mps.is_available()), "cuda": torch.cuda.device_count()}
    count = counts.get(wanted.type, 0)
    if not count:
        return f"no {wanted.type} device here (torch {torch.__version__})"
    return f"{device} is not there: {count} of its kind are" if (wanted.index or 0) >= count else None


def best_device() -> str:
    """The accelerator of this machine, or the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on the device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
