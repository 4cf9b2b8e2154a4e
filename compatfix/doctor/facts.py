"""What the doctor learns, as plain data between the worker, the findings and the report. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from compatfix.profiles import Device, FastPath, TargetProfile

# What a tree's logits are held against.
PLAIN, EAGER = "plain decoding over the root paths", "eager attention"


@dataclass(frozen=True)
class Health:
    """A package: `state` is "works", "broken" or "absent"; a broken one has the first line of its error."""

    name: str
    version: str | None
    state: str
    error: str | None = None


@dataclass(frozen=True)
class Machine:
    """The environment and the machine under test. `build` is torch's ("CPU", "CUDA 12.8", "ROCm 6.2").

    `gpu_seen` says that the system has an NVIDIA device, `gpu_error` why torch cannot use CUDA. `disk_free` is what is
    free at `disk`, where a dispatch would offload weights to.
    """

    python: str
    torch: str
    transformers: str
    build: str
    devices: tuple[Device, ...]
    gpu_seen: bool
    disk: str
    disk_free: int | None
    gpu_error: str | None = None

    @property
    def accelerated(self) -> bool:
        return any(device.kind != "cpu" for device in self.devices)


@dataclass(frozen=True)
class Observed:
    """A forward of the tiny model, watched. `error` and the `culprit` package where it raised."""

    class_name: str
    device: str
    paths: tuple[FastPath, ...] = ()
    others: tuple[str, ...] = ()
    error: str | None = None
    culprit: str | None = None


@dataclass(frozen=True)
class Trial:
    """One attention implementation with one form of tree mask ("float" or "bool").

    `state` is "right", "wrong", "undecided", "refused", "not installed" or "not taken". `ignored`: the mask is, since
    another token in a masked branch moves what must not notice. `uncompiled`: it asks for torch.compile and was run
    without. `difference` is that from the reference.
    """

    name: str
    form: str
    state: str
    text: str
    dtype: str = "float32"
    difference: float | None = None
    ignored: bool = False
    uncompiled: bool = False


@dataclass(frozen=True)
class Attention:
    """Every trial on one tiny model. `default` is what the model gets if nobody asks; `reference` what was right."""

    class_name: str
    device: str
    default: str
    reference: str | None
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class TargetFacts:
    """A target without its weights; `weight_bytes` is what its checkpoint stores for a weight, if quantised."""

    target: TargetProfile
    weight_bytes: float | None = None
