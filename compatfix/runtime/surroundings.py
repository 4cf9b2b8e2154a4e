"""What a run really has: classes and the files that they come from, dtypes, devices, packages, flags. As plain data.

The tool stores it beside a green verdict; patched code compares itself with that at its start (attest.py).
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .code_in_use import attached, attention_code, forwards, functions

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
_TOLD_ELSEWHERE = {
    "auto_map",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "architectures",
    "model_type",
    "use_cache",
}
# Variables of this package that do not change what is computed.
_HARMLESS = {"COMPATFIX_ATTEST", "COMPATFIX_VERDICT", "COMPATFIX_STATE_DIR"}


def tree_root() -> Path | None:
    """The patched tree in which this package lies; None where it is no copy in one."""
    package = Path(__file__).resolve().parent
    return package.parent if package.name == "compatfix_runtime" else None


def observed(target: nn.Module, draft: nn.Module | None, strategy: str | None, weights: bool = True) -> dict[str, Any]:
    """Everything that is compared, JSON-able: packages, flags, libraries, code in use, target, draft, strategy.

    `weights` adds a digest of the first value of every parameter of the two models, and what their buffers hold.
    """
    models = [model for model in (target, draft) if model is not None]
    root, used = tree_root(), libraries(models)
    return {
        "packages": packages(),
        "flags": flags(),
        "libraries": used,
        "forwards": forwards(models),
        "attached": attached(models, root),
        "functions": functions([*_own_modules(root), *(sys.modules[name] for name in used)]),
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
        "cuDNN": lambda: cudnn.enabled,
        "oneDNN": lambda: torch.backends.mkldnn.enabled,
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
    """What a model is: its class and where that comes from, dtypes, attention, devices. Any of its modules counts."""
    plain = getattr(model, "_orig_mod", model)
    config, modules = getattr(plain, "config", None), list(plain.modules())
    floating = sorted({str(p.dtype).removeprefix("torch.") for p in plain.parameters() if p.dtype.is_floating_point})
    devices = sorted({str(p.device) for p in plain.parameters()})
    kinds = sorted({name.split(":")[0] for name in devices})
    quantised = getattr(config, "quantization_config", None)
    method = quantised.get("quant_method") if isinstance(quantised, dict) else getattr(quantised, "quant_method", None)
    # Of the text model: what an image is read with is not in use.
    configs = [config, *(getattr(part, "config", None) for part in _text_model(plain).modules())]
    attention = sorted({str(getattr(one, "_attn_implementation", None)) for one in configs if one is not None})
    return {
        "class": type(plain).__qualname__,
        "file": file_of(type(plain)),
        "dtype": "+".join(floating) or "None",
        "attention": "+".join(attention) or "None",
        "attention code": [attention_code(name) for name in attention],
        "device": "+".join(kinds) + (f" ({len(devices)})" if len(devices) > len(kinds) else ""),
        "compiled": plain is not model or any(_is_compiled(part) for part in modules),
        "training": any(part.training for part in modules),
        "quantised": None if method is None else str(getattr(method, "value", method)),
        "layers": _layers(plain),
        "weights": sampled_weights(plain) if weights else None,
        "buffers": mean_buffers(plain) if weights else None,
        "config": config_of(config),
    }


def _text_model(model: nn.Module) -> nn.Module:
    try:
        found = model.get_decoder()  # type: ignore[operator]
    except Exception:  # older and custom classes have none, or one that fails
        return model
    return found if isinstance(found, nn.Module) else model


def _layers(model: nn.Module) -> list[int] | None:
    """How many layers there are, and how many the config says."""
    config, layers = getattr(model, "config", None), getattr(_text_model(model), "layers", None)
    inner = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    declared = getattr(inner, "num_hidden_layers", None)
    return [len(layers), declared] if isinstance(layers, nn.ModuleList) and isinstance(declared, int) else None


def _is_compiled(part: nn.Module) -> bool:
    forward = vars(part).get("forward")
    return (
        "_orig_mod" in part._modules or part._compiled_call_impl is not None or hasattr(forward, "get_compiler_config")
    )


def config_of(config: Any) -> dict[str, Any] | None:
    """What a config says about the text model, flat: plain values and lists of them by (dotted) name.

    What only the config around it says (tokens of images) stands under "whole": a text model may be loaded without it.
    """
    if config is None or not hasattr(config, "to_dict"):
        return None
    told = config.to_dict()
    inner = config.get_text_config() if hasattr(config, "get_text_config") else config
    if inner is not config:
        text = inner.to_dict()
        whole = {name: value for name, value in told.items() if not isinstance(value, dict) and name not in text}
        told = {**text, "whole": whole}
    return dict(_flat(told))


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in _TOLD_ELSEWHERE or name.startswith("_"):
            continue
        if isinstance(value, dict):
            yield from _flat({str(key): inner for key, inner in value.items()}, f"{prefix}{name}.")
        else:
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
        total.update(f"{name.replace('_orig_mod.', '')} {tuple(parameter.shape)}\n".encode())
        if parameter.device.type == "meta":
            return None
        if parameter.numel():
            first = parameter.detach()[(0,) * parameter.ndim]
            by_device.setdefault(parameter.device, []).append(first.to(torch.float32))
    for values in by_device.values():
        total.update(torch.stack(values).cpu().numpy().tobytes())
    return total.hexdigest()


def mean_buffers(model: nn.Module) -> dict[str, float]:
    """The mean of every buffer of floating-point numbers (a rotary table), but for those that grow with the text."""
    means: dict[str, torch.Tensor] = {}
    for prefix, part in model.named_modules():
        grows = any(kind in str(getattr(part, "rope_type", "")) for kind in ("dynamic", "longrope"))
        for name, buffer in part.named_buffers(recurse=False):
            if not grows and buffer.is_floating_point() and buffer.numel() and buffer.device.type != "meta":
                means[f"{prefix}.{name}".replace("_orig_mod.", "")] = buffer.detach().to(torch.float32).mean().cpu()
    return {name: float(value) for name, value in means.items()}


def imported_files(root: Path) -> Iterator[tuple[str, str]]:
    """Files below `root` that are imported now, scripts included: relative path and hash."""
    seen: set[str] = set()
    for module in _modules_in(root):
        name = Path(str(module.__file__)).resolve().relative_to(root).as_posix()
        if name not in seen:
            seen.add(name)
            yield name, digest_of(str(module.__file__)) or ""


def _own_modules(root: Path | None) -> list[ModuleType]:
    """Of the tree, this package aside."""
    return [module for module in _modules_in(root) if module.__name__.split(".")[0] != __name__.split(".")[0]]


def _modules_in(root: Path | None) -> Iterator[ModuleType]:
    for module in list(sys.modules.values()) if root is not None else ():
        file = getattr(module, "__file__", None)
        if root is None or not isinstance(file, str):
            continue
        path = real_path(file)
        if path.startswith(f"{root}{os.sep}") and "site-packages" not in path[len(str(root)) :].split(os.sep):
            yield module


def real_path(file: str) -> str:
    """Thousands of modules share some hundred directories: the links of each are followed once."""
    directory, name = os.path.split(file)
    return os.path.realpath(file) if os.path.islink(file) else os.path.join(_real_directory(directory), name)


@functools.cache
def _real_directory(directory: str) -> str:
    return os.path.realpath(directory)


def digest_of(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None
