"""What a checkpoint's quantisation is, from its config and, where there are headers, from the tensors. Free of torch.

Configs as their tools write them: fp8 (weight_block_size, modules_to_not_convert), AutoAWQ and GPTQModel (bits,
group_size), compressed-tensors (config_groups, ignore, format, transform_config), ModelOpt (quant_algo,
exclude_modules), bitsandbytes (load_in_4bit, llm_int8_skip_modules), torchao (quant_type), mxfp4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from compatfix.checkpoint.header import StoredTensor
from compatfix.checkpoint.quantised import plain_names
from compatfix.introspect.shrink import TEXT_KEYS
from compatfix.profiles import Quantisation, Share

BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4, "awq": 4, "gptq": 4}
_SECTIONS = ("quantization_config", "compression_config")
_KEPT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
# The part of a decoder layer that a tensor belongs to, or the module outside the layers.
_IN_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.\d+\.([^.]+)(?:\.|$)")
# Only recurrent layers have these beside their matrices.
_RECURRENT = re.compile(r"\.(?:A_log|dt_bias|conv1d|in_proj_ba|in_proj_a|x_proj|D)(?:\.|$)")


def describe_quantisation(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor] | None) -> Quantisation | None:
    """None where the config names no quantisation; `tensors` None where no headers could be read."""
    section = section_of(config)
    if section is None:
        return None
    method = str(section.get("quant_method", "unknown"))
    rotated = _rotation(section)
    return Quantisation(
        method=method,
        form=_form(section),
        bits=_bits(method, section),
        kept=tuple(_kept(section)),
        rotated=rotated,
        shares=() if tensors is None else tuple(_shares(tensors)),
    )


def section_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the library would take for a quantisation, at the top or in the language model's part; None for none.

    A section that is a word is taken for the method; bitsandbytes is known without its name, as the library knows it.
    """
    for part in (config, *(config.get(name) for name in TEXT_KEYS)):
        for name in _SECTIONS:
            section = part.get(name) if isinstance(part, Mapping) else None
            if section is None:
                continue
            if not isinstance(section, Mapping):
                return {"quant_method": str(section)}
            narrow = "quant_method" not in section and (section.get("load_in_4bit") or section.get("load_in_8bit"))
            return {"quant_method": "bitsandbytes", **section} if narrow else section
    return None


def _form(section: Mapping[str, Any]) -> str | None:
    for name in ("format", "quant_algo", "bnb_4bit_quant_type", "version", "fmt"):
        value = section.get(name)
        if isinstance(value, str):
            return value
    kind = section.get("quant_type")
    if isinstance(kind, Mapping):
        inner = kind.get("default", kind)
        return str(inner.get("_type", inner)) if isinstance(inner, Mapping) else str(inner)
    return str(kind) if isinstance(kind, str) else None


def _bits(method: str, section: Mapping[str, Any]) -> int | None:
    value = section.get("bits", section.get("w_bit"))
    if isinstance(value, int):
        return value
    if method == "bitsandbytes":
        return 4 if section.get("load_in_4bit") else 8 if section.get("load_in_8bit") else None
    groups = section.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and isinstance(weights.get("num_bits"), int):
            return int(weights["num_bits"])
    algorithm = str(section.get("quant_algo", section.get("format", ""))).lower()
    told = re.search(r"(?:nvfp|mxfp|int|fp|w)(\d+)", algorithm)
    return int(told.group(1)) if told else BITS.get(method)


def _kept(section: Mapping[str, Any]) -> Iterator[str]:
    for name in _KEPT:
        value = section.get(name)
        if isinstance(value, (list, tuple)):
            yield from (str(item) for item in value)


def _rotation(section: Mapping[str, Any]) -> str | None:
    """What compressed-tensors says of transforms that stay in the hidden states' basis (SpinQuant, QuIP)."""
    transforms = section.get("transform_config")
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    if not isinstance(groups, Mapping) or not groups:
        return None
    return ", ".join(sorted(str(name) for name in groups))


def _shares(tensors: Mapping[str, StoredTensor]) -> Iterator[Share]:
    """By part of the model: how many of its matrices are packed, and whether the part is recurrent."""
    shapes, packed = plain_names(tensors)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    recurrent = set()
    for name, shape in shapes.items():
        part = _part(name)
        if _RECURRENT.search(name):
            recurrent.add(part)
        if (len(shape) >= 2 and not name.endswith("conv1d.weight")) or name in packed:
            counts[part][0] += name in packed
            counts[part][1] += 1
    for part, (quantised, matrices) in sorted(counts.items()):
        yield Share(part, quantised, matrices, part in recurrent)


def _part(name: str) -> str:
    match = _IN_LAYER.search(name)
    if match:
        return match.group(1)
    parts = [part for part in name.split(".") if part not in ("model", "language_model", "weight", "bias")]
    return parts[0] if parts else name
