"""The worker's job "machine": torch's build, devices with what is free on them, memory, disk."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from compatfix.doctor.facts import Machine
from compatfix.introspect.devices import free_devices
from compatfix.serial import to_plain

NVIDIA = ("/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")


def run(args: dict[str, Any], progress: Any) -> dict[str, Any]:
    """Args: `disk`, the directory that a dispatch would offload to. Returns a Machine as JSON."""
    progress("looking at the devices")
    plain: dict[str, Any] = to_plain(describe_machine(args["disk"]))
    return plain


def describe_machine(disk: str) -> Machine:
    import transformers

    devices, gpu_error = free_devices()
    return Machine(
        python=sys.version.split()[0],
        torch=torch.__version__,
        transformers=transformers.__version__,
        build=_build(),
        devices=devices,
        gpu_error=gpu_error,
        gpu_seen=any(Path(name).exists() for name in NVIDIA),
        disk=disk,
        disk_free=_disk_free(disk),
    )


def _build() -> str:
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    hip = getattr(torch.version, "hip", None)
    return f"ROCm {hip}" if hip else "CPU"


def _disk_free(path: str) -> int | None:
    """Free bytes at a directory, or at its nearest parent that is there."""
    for place in (Path(path), *Path(path).absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None
