"""The devices of this machine, and what is free on each now."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from compatfix.introspect.words import one_line
from compatfix.profiles import Device

# A control group of a container, by version: limit, use, and what of the use can be given up.
GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


def experiment_device() -> torch.device:
    """Where experiments run: kernels exist for CUDA; elsewhere the CPU tells the same."""
    return torch.device("cpu" if gpu_error() else "cuda")


def gpu_error() -> str | None:
    """Why CUDA cannot be used here, found by using it; None where it can."""
    try:
        torch.zeros(1, device="cuda")
    except Exception as error:
        return one_line(error)
    return None


def free_devices() -> tuple[tuple[Device, ...], str | None]:
    """Devices with what is free on them, and why there is no CUDA among them."""
    devices, error = [], gpu_error()
    if error is None:
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_properties(index).name
            devices.append(Device(f"cuda:{index} {name}", "cuda", int(total), free=int(free)))
    if torch.backends.mps.is_available():
        total = int(torch.mps.recommended_max_memory())
        devices.append(Device("mps", "mps", total, free=total - int(torch.mps.driver_allocated_memory())))
    total, free = memory()
    return (*devices, Device("cpu", "cpu", total, free=free)), error


def memory() -> tuple[int, int]:
    """Total and available memory, whichever of the machine and the container allows less."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = available = page * os.sysconf("SC_PHYS_PAGES")
    told = _numbers("/proc/meminfo")
    if "MemAvailable:" in told:
        available = told["MemAvailable:"] * 1024
    for limit_file, use_file, stat_file in GROUPS:
        limit, used = _number(limit_file), _number(use_file)
        if limit is not None and used is not None and limit < total:
            total = limit
            available = min(available, max(0, limit - used + _numbers(stat_file).get("inactive_file", 0)))
    return total, available


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # "max": no limit
        return None


def _numbers(path: str) -> dict[str, int]:
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def device_of(wanted: torch.device) -> Device | None:
    """What is known of one device; None where this machine has none of that kind."""
    of_kind = [device for device in free_devices()[0] if device.kind == wanted.type]
    return of_kind[wanted.index or 0] if (wanted.index or 0) < len(of_kind) else None
