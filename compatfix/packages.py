"""The packages that a run can meet, and how each is imported, picked up and installed. Data only; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

FLA, CONV, MAMBA = "flash-linear-attention", "causal-conv1d", "mamba-ssm"


@dataclass(frozen=True)
class PackageSpec:
    """One package: its distribution, the module that is imported, and what it is for.

    `parts` are modules inside that transformers takes functions from. `picked_up`: transformers (or torch) imports it
    by itself where it is present, so a broken one is met without being asked for. `also` are other distributions that
    bring the same module.
    """

    name: str
    module: str
    purpose: str
    picked_up: bool = True
    parts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    install: str = ""

    @property
    def command(self) -> str:
        return self.install or f"pip install {self.name}"


PACKAGES = (
    PackageSpec("torch", "torch", "everything"),
    PackageSpec("transformers", "transformers", "everything"),
    PackageSpec("accelerate", "accelerate", "device_map= in from_pretrained"),
    PackageSpec("safetensors", "safetensors", "reading checkpoints"),
    PackageSpec("tokenizers", "tokenizers", "tokenizers"),
    PackageSpec("huggingface-hub", "huggingface_hub", "downloads", also=("huggingface_hub",)),
    PackageSpec("triton", "triton", "kernels of torch.compile and of the packages below", also=("pytorch-triton",)),
    PackageSpec(FLA, "fla", "gated delta rule and related layers", parts=("fla.ops.gated_delta_rule",),
                also=("fla-core",)),
    PackageSpec(CONV, "causal_conv1d", "short convolutions", install="pip install causal-conv1d --no-build-isolation"),
    PackageSpec(MAMBA, "mamba_ssm", "state-space layers", install="pip install mamba-ssm --no-build-isolation"),
    PackageSpec("flash-attn", "flash_attn", "flash_attention_2",
                install="pip install flash-attn --no-build-isolation"),
    PackageSpec("flash-attn-3", "flash_attn_interface", "flash_attention_3", also=("flash_attn_3",),
                install="build it from the hopper directory of flash-attention"),
    PackageSpec("kernels", "kernels", "kernels from the hub, by name"),
    PackageSpec("bitsandbytes", "bitsandbytes", "8-bit and 4-bit weights", picked_up=False),
    PackageSpec("compressed-tensors", "compressed_tensors", "compressed checkpoints", picked_up=False),
    PackageSpec("gptqmodel", "gptqmodel", "GPTQ and AWQ checkpoints", picked_up=False),
    PackageSpec("autoawq", "awq", "AWQ checkpoints", picked_up=False),
    PackageSpec("torchao", "torchao", "torchao checkpoints", picked_up=False),
)  # fmt: skip

BY_NAME = {spec.name: spec for spec in PACKAGES}
BY_MODULE = {spec.module: spec for spec in PACKAGES}
# Quantisation methods as configs name them, and the packages any one of which loads such a checkpoint.
QUANTISATION = {
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed-tensors",),
    "gptq": ("gptqmodel",),
    "awq": ("gptqmodel", "autoawq"),
    "torchao": ("torchao",),
}
# Functions of kernel packages, by a part of the name under which layers call them or their substitute.
KERNEL_WORDS = {
    "gated_delta_rule": FLA,
    "kda": FLA,
    "kimi_delta": FLA,
    "causal_conv1d": CONV,
    "selective_scan": MAMBA,
    "selective_state_update": MAMBA,
    "mamba_chunk_scan": MAMBA,
    "mamba2_chunk_scan": MAMBA,
    "mamba_split_conv1d": MAMBA,
    "mamba_inner": MAMBA,
}


def kernel_package(function: str) -> str | None:
    """The package that has a fast version of a function of this name."""
    return next((package for word, package in KERNEL_WORDS.items() if word in function), None)
