"""What a run really has: classes and the files that they come from, dtypes, devices, packages, flags. As plain data.

The tool stores it beside a green verdict; patched code compares itself with that at its start (attest.py).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Packages that change what a model computes or which kernels it runs on. Of others a version says little.
PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "bitsandbytes",
    "causal_conv1d",
    "compressed_tensors",
    "deepspeed",
    "fla",
    "flash_attn",
    "flash_attn_interface",
    "kernels",
    "mamba_ssm",
    "peft",
    "torchao",
    "triton",
    "xformers",
)
# Modules that every model runs through, besides those of its classes.
_SHARED = (
    "cache_utils",
    "masking_utils",
    "modeling_utils",
    "modeling_rope_utils",
    "modeling_attn_mask_utils",
    "integrations.sdpa_attention",
    "integrations.flash_attention",
    "integrations.hub_kernels",
)
# Of a config: names of files and versions, and what the model itself tells.
_TOLD_ELSEWHERE = {"transformers_version", "dtype", "torch_dtype", "architectures", "model_type", "use_cache"}
# Variables of this package that do not change what is computed.
_HARMLESS = {"COMPATFIX_ATTEST", "COMPATFIX_VERDICT", "COMPATFIX_STATE_DIR"}


def tree_root() -> Path | None:
    """The patched tree in which this package lies; None where it is no copy in one."""
    package = Path(__file__).resolve().parent
    return package.parent if package.name == "compatfix_runtime" else None


def observed(target: nn.Module, draft: nn.Module | None, strategy: str | None, weights: bool = True) -> dict[str, Any]:
    """Everything that is compared, JSON-able: packages, flags, libraries, target, draft, strategy.

    `weights` adds a digest of the first value of every parameter of the two models.
    """
    models = [model for model in (target, draft) if model is not None]
    return {
        "packages": packages(),
        "flags": flags(),
        "libraries": libraries(models),
        "target": model_of(target, weights),
        "draft": None if draft is None else model_of(draft, weights),
        "strategy": strategy,
    }


def packages() -> dict[str, str]:
    """Versions of what is loaded, the interpreter's among them."""
    found = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def flags() -> dict[str, Any]:
    """Switches of torch that change arithmetic or kernels, and the variables of this package."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    asked: dict[str, Callable[[], Any]] = {
        "float32 matmul precision": torch.get_float32_matmul_precision,
        "TF32 in cuDNN": lambda: cudnn.allow_tf32,
        "bf16 reduced reductions": lambda: cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fp16 reduced reductions": lambda: cuda.matmul.allow_fp16_reduced_precision_reduction,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
        "flash sdpa": cuda.flash_sdp_enabled,
        "memory-efficient sdpa": cuda.mem_efficient_sdp_enabled,
        "math sdpa": cuda.math_sdp_enabled,
        "cuDNN sdpa": cuda.cudnn_sdp_enabled,
        "default dtype": lambda: str(torch.get_default_dtype()),
        "autocast": lambda: _autocast(),
    }
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        try:
            found[name] = _plain(ask())
        except (AttributeError, RuntimeError):  # not in this torch, or set through its other interface
            continue
    named = {k: v for k, v in os.environ.items() if k.startswith("COMPATFIX_") and v and k not in _HARMLESS}
    return {**found, **named}


def _plain(value: Any) -> Any:
    # Some switches of newer versions are pairs of named values.
    return value if isinstance(value, (bool, int, str)) else str(value)


def _autocast() -> str:
    kinds = [kind for kind in ("cuda", "cpu", "mps", "xpu") if torch.is_autocast_enabled(kind)]
    return ", ".join(f"{kind} {torch.get_autocast_dtype(kind)}" for kind in kinds) or "off"


def libraries(models: list[nn.Module]) -> dict[str, str]:
    """Hashes of the files outside the tree that hold the models' classes and what every model runs through.

    By module name. Those of torch are left to its version.
    """
    kinds = {kind for model in models for part in model.modules() for kind in type(part).__mro__}
    names = {kind.__module__ for kind in kinds}
    names |= {f"transformers.{name}" for name in _SHARED}
    root = tree_root()
    found: dict[str, str] = {}
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or name.split(".")[0] in ("torch", "typing", "abc", "builtins"):
            continue
        if root is not None and Path(file).resolve().is_relative_to(root):
            continue
        digest = digest_of(file)
        if digest is not None:
            found[name] = digest
    return found


def model_of(model: nn.Module, weights: bool) -> dict[str, Any]:
    """What a model is: its class and where that comes from, dtype, attention, device."""
    plain = getattr(model, "_orig_mod", model)
    config = getattr(plain, "config", None)
    floating = next((p.dtype for p in plain.parameters() if p.dtype.is_floating_point), None)
    devices = sorted({str(p.device) for p in plain.parameters()})
    kinds = sorted({name.split(":")[0] for name in devices})
    quantised = getattr(config, "quantization_config", None)
    method = quantised.get("quant_method") if isinstance(quantised, dict) else getattr(quantised, "quant_method", None)
    return {
        "class": type(plain).__qualname__,
        "file": file_of(type(plain)),
        "dtype": str(floating).removeprefix("torch."),
        "attention": str(getattr(config, "_attn_implementation", None)),
        "device": "+".join(kinds) + (f" ({len(devices)})" if len(devices) > len(kinds) else ""),
        "compiled": plain is not model or getattr(plain, "_compiled_call_impl", None) is not None,
        "training": plain.training,
        "quantised": None if method is None else str(getattr(method, "value", method)),
        "weights": sampled_weights(plain) if weights else None,
        "config": config_of(config),
    }


def config_of(config: Any) -> dict[str, Any] | None:
    """What a config says about the text model, flat: plain values and lists of them by (dotted) name."""
    if config is None or not hasattr(config, "to_dict"):
        return None
    told = config.to_dict()
    inner = config.get_text_config() if hasattr(config, "get_text_config") else config
    if inner is not config:
        told = {**{name: value for name, value in told.items() if not isinstance(value, dict)}, **inner.to_dict()}
    return dict(_flat(told))


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat({str(key): inner for key, inner in value.items()}, f"{prefix}{name}.")
        elif name not in _TOLD_ELSEWHERE and not name.startswith("_"):
            items = list(value) if isinstance(value, (list, tuple)) else [value]
            if all(item is None or isinstance(item, (bool, int, float, str)) for item in items):
                yield f"{prefix}{name}", items if isinstance(value, (list, tuple)) else value


def file_of(kind: type) -> str | None:
    """Where a class is defined: a path relative to the tree, or outside it the module's name."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    root = tree_root()
    if file is not None and root is not None and Path(file).resolve().is_relative_to(root):
        return Path(file).resolve().relative_to(root).as_posix()
    return str(kind.__module__)


def sampled_weights(model: nn.Module) -> str | None:
    """A digest of the first value of every parameter, with names and shapes; None where one of them lies nowhere.

    Another revision of the weights, a fine-tuned or a random draft differs in it. One transfer per device.
    """
    total = hashlib.sha256()
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        total.update(f"{name} {tuple(parameter.shape)}\n".encode())
        if parameter.device.type == "meta":
            return None
        if parameter.numel():
            first = parameter.detach()[(0,) * parameter.ndim]
            by_device.setdefault(parameter.device, []).append(first.to(torch.float32))
    for values in by_device.values():
        total.update(torch.stack(values).cpu().numpy().tobytes())
    return total.hexdigest()


def imported_files(root: Path) -> Iterator[tuple[str, str]]:
    """Files below `root` that are imported now, scripts included: relative path and hash."""
    seen: set[str] = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if not path.is_relative_to(root) or "site-packages" in path.relative_to(root).parts:
            continue
        name = path.relative_to(root).as_posix()
        if name not in seen:
            seen.add(name)
            yield name, digest_of(file) or ""


def digest_of(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None
