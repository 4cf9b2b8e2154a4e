"""The environment under test: versions, optional packages and what each missing one costs this target, devices."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from compatfix.introspect.devices import free_devices
from compatfix.profiles import Device, EnvironmentProfile, Package

# Package, effect of its absence on a target that has a use for it, what that means, and what adds it.
LINEAR = "flash-linear-attention"
CONV = "causal-conv1d"
OPTIONAL = (
    ("accelerate", "impossible", "device_map= in from_pretrained raises an ImportError", "pip install accelerate"),
    (LINEAR, "slow", "linear layers run on reference kernels: same outputs", f"pip install {LINEAR}"),
    (CONV, "slow", "short convolutions run on the reference implementation: same outputs", f"pip install {CONV}"),
    ("mamba-ssm", "slow", "state-space layers run on reference kernels: same outputs", "pip install mamba-ssm"),
    ("flash-attn", "impossible", "flash_attention_2 by name raises; sdpa works", "pip install flash-attn "
     "--no-build-isolation"),
)  # fmt: skip
# Wanted whatever the target is made of; the others only where its layers have a fast path for them.
ALWAYS = ("accelerate", "flash-attn")


def describe_environment(kernels: Sequence[str], devices: Sequence[str | float] = ()) -> EnvironmentProfile:
    """`kernels` are packages that the target's layers have fast paths for; `devices` sizes in GB that the user gave."""
    import transformers

    packages = []
    for name, effect, cost, command in OPTIONAL:
        version = installed(name)
        wanted = name in ALWAYS or name in kernels
        if not wanted and version is None:
            effect, cost = "none", "not used: this target has no layers that call it"
        packages.append(Package(name, version, wanted, effect, cost, command))
    return EnvironmentProfile(
        python=sys.version.split()[0],
        torch=torch.__version__,
        transformers=transformers.__version__,
        packages=tuple(packages),
        devices=tuple(given_devices(devices) or present_devices()),
    )


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def present_devices() -> list[Device]:
    """All of what they hold, whatever is in use now: the plan is for the machine, not for this moment."""
    named = {"cpu": "the memory of this machine"}
    return [replace(device, name=named.get(device.kind, device.name), free=None) for device in free_devices()[0]]


def given_devices(sizes: Sequence[str | float]) -> list[Device]:
    """Devices that are planned for and not present, by their size in GB."""
    return [Device(f"card {i + 1}", "cuda", int(float(size) * 1e9), given=True) for i, size in enumerate(sizes)]
