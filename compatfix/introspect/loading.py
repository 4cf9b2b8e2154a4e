"""Would a checkpoint's tensors fill a class? Asked of the library itself, with tensors that have a shape and no bytes.

Since transformers 5 a state of meta tensors goes through the library's own loading: its key renames, merged experts,
ignored keys and tied weights. Before that, loading materialises what is missing (16 GB for an 8B model, measured with
4.57.6), so names are compared here, under the renames that the class declares.
"""

from __future__ import annotations

import copy
import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from compatfix.checkpoint.header import StoredTensor
from compatfix.checkpoint.quantised import plain_names
from compatfix.introspect.classes import Resolved
from compatfix.introspect.skeleton import build_skeleton
from compatfix.profiles import TensorMatch

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def match_tensors(resolved: Resolved, tensors: Mapping[str, StoredTensor], dtype: str, quantised: bool) -> TensorMatch:
    """Holds the tensors of a checkpoint against the class that would load them.

    Of a quantised checkpoint the plain tensors are compared, and of packed ones the names.
    """
    skeleton = build_skeleton(resolved, dtype)
    wanted = {name: tuple(value.shape) for name, value in skeleton.state_dict().items()}
    packed: frozenset[str] = frozenset()
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if quantised:
        shapes, packed = plain_names(tensors)
    ignored = _ignored(resolved.model_class, shapes)
    tied = _tied(skeleton)
    if importlib.util.find_spec("transformers.core_model_loading") is not None:
        missing, surplus, other = _by_the_library(resolved, tensors, shapes)
    else:
        missing, surplus, other = _by_name(resolved.model_class, wanted, shapes, ignored)
    # Packed weights have the shape of their packing.
    other = [row for row in other if not _is_packed(row[0], packed)]
    stored_ties = sorted(name for name in tied if any(stored.endswith(name) for stored in shapes))
    return TensorMatch(
        class_name=resolved.name,
        wanted=len(wanted),
        missing=tuple(sorted(set(missing) - tied)),
        surplus=tuple(sorted(set(surplus) - set(ignored))),
        other_shape=tuple(sorted(other)),
        left_out=dict(Counter(name.split(".")[0] if name.startswith("mtp") else _part(name) for name in ignored)),
        tied=tuple(sorted(tied)),
        tied_stored=tuple(stored_ties),
    )


def _by_the_library(
    resolved: Resolved, tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[str], list[str], list[tuple[str, str, str]]]:
    config = copy.deepcopy(resolved.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # its quantiser would ask for packages and devices
    state = {
        name: torch.empty(shape, dtype=_DTYPES.get(tensors[name].dtype) if name in tensors else None, device="meta")
        for name, shape in shapes.items()
    }
    with _silent():
        _, told = resolved.model_class.from_pretrained(
            None,
            config=config,
            state_dict=state,
            device_map={"": "meta"},
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    other = [(str(name), str(list(old)), str(list(new))) for name, old, new in told["mismatched_keys"]]
    return list(told["missing_keys"]), list(told["unexpected_keys"]), other


def _by_name(
    model_class: type[Any],
    wanted: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    ignored: Iterable[str],
) -> tuple[list[str], list[str], list[tuple[str, str, str]]]:
    renames: Mapping[str, str] = getattr(model_class, "_checkpoint_conversion_mapping", None) or {}
    prefix = str(getattr(model_class, "base_model_prefix", ""))
    found: dict[str, tuple[int, ...]] = {}
    surplus = []
    for name, shape in shapes.items():
        if name in ignored:
            continue
        new = name
        for pattern, replacement in renames.items():
            new, count = re.subn(pattern, replacement, new)
            if count:
                break
        candidates = (new, f"{prefix}.{new}", new.removeprefix(f"{prefix}."))
        known = next((candidate for candidate in candidates if candidate in wanted), None)
        if known is None:
            surplus.append(name)
        else:
            found[known] = shape
    optional = [re.compile(p) for p in getattr(model_class, "_keys_to_ignore_on_load_missing", None) or ()]
    missing = [n for n in wanted if n not in found and not any(pattern.search(n) for pattern in optional)]
    other = [(n, str(list(s)), str(list(wanted[n]))) for n, s in found.items() if s != wanted[n]]
    return missing, surplus, other


def _ignored(model_class: type[Any], names: Iterable[str]) -> list[str]:
    """Tensors that the class leaves out on purpose: vision towers in a text class, multi-token prediction."""
    patterns = [re.compile(p) for p in getattr(model_class, "_keys_to_ignore_on_load_unexpected", None) or ()]
    return [name for name in names if any(pattern.search(name) for pattern in patterns)]


def _tied(skeleton: Any) -> set[str]:
    """Names of parameters that are another one's: the library fills them from there."""
    first: dict[int, str] = {}
    tied = set()
    for name, parameter in skeleton.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied.add(name)
    return tied


def _is_packed(name: str, packed: frozenset[str]) -> bool:
    return any(name == stored or stored.endswith(name.split(".", 1)[-1]) for stored in packed)


def _part(name: str) -> str:
    """The module that a tensor left out belongs to: "visual" of model.visual.blocks.0.norm1.weight."""
    parts = [part for part in name.split(".") if part != "model"]
    return parts[0] if parts else name


@contextmanager
def _silent() -> Iterator[None]:
    """The library prints a table of what it missed, and a progress bar; the report says it better."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
