"""The real model on the meta device: every module and shape, no weights; its parts found by identity and structure."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from compatfix.introspect.classes import Resolved
from compatfix.packages import KERNEL_WORDS
from compatfix.profiles import ClassProfile

# Paths that published code or public notes take for granted; each is looked up in every class.
USED_IN_CODE = ("model.embed_tokens", "model.language_model.embed_tokens", "lm_head")
NAMED_IN_NOTES = ("model.language_model.model.embed_tokens",)


def build_skeleton(resolved: Resolved, dtype: str) -> Any:
    """An instance of the class on the meta device, in the dtype that loading would use."""
    with torch.device("meta"), _quiet():
        model = resolved.model_class._from_config(resolved.config)
    wanted = getattr(torch, dtype, None)
    return model.to(wanted) if isinstance(wanted, torch.dtype) and wanted.is_floating_point else model


def describe_class(model: Any, loaders: tuple[str, ...]) -> ClassProfile:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    paths = {id(module): path for path, module in model.named_modules(remove_duplicate=False)}
    layers_path = decoder_layers_path(model)
    return ClassProfile(
        name=type(model).__name__,
        loaders=loaders,
        tensors=len(model.state_dict()),
        parameters=sum(p.numel() for p in model.parameters()),
        nesting=tuple(_nesting(model, layers_path)) if layers_path else (),
        embedding=paths.get(id(embedding)),
        layers=layers_path,
        norm=final_norm_path(model, layers_path) if layers_path else None,
        head=paths.get(id(head)) if head is not None else None,
        tied=head is not None and head.weight is embedding.weight,
        claimed={path: has_path(model, path) for path in (*USED_IN_CODE, *NAMED_IN_NOTES)},
        noted=NAMED_IN_NOTES,
    )


def decoder_layers_path(model: Any) -> str | None:
    """The list of decoder layers: as long as the config's depth, and nearest to the input embeddings."""
    depth = model.config.get_text_config().num_hidden_layers
    embedding = model.get_input_embeddings()
    embedding_path = next((path for path, module in model.named_modules() if module is embedding), "")
    lists: list[str] = [
        path for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == depth
    ]
    if not lists:
        return None
    return max(lists, key=lambda path: (_shared(path, embedding_path), -path.count(".")))


def final_norm_path(model: Any, layers_path: str) -> str | None:
    """The norm that follows the decoder layers: the first sibling behind them with one weight of the hidden size."""
    parent_path, _, name = layers_path.rpartition(".")
    parent = model.get_submodule(parent_path)
    hidden = model.config.get_text_config().hidden_size
    names = list(dict(parent.named_children()))
    siblings = [*names[names.index(name) + 1 :], *names[: names.index(name)]]
    for sibling in siblings:
        shapes = [tuple(p.shape) for p in parent.get_submodule(sibling).parameters()]
        if shapes and shapes[0] == (hidden,) and len(shapes) <= 2:
            return f"{parent_path}.{sibling}" if parent_path else sibling
    return None


def has_path(model: Any, path: str) -> bool:
    place = model
    for name in path.split("."):
        place = getattr(place, name, None)
        if place is None:
            return False
    return True


def kernel_packages(model: Any, layers_path: str | None) -> tuple[str, ...]:
    """Optional packages that the decoder's mixers have fast paths for, by what their modules are made of."""
    if layers_path is None:
        return ()
    mixers: set[type[nn.Module]] = set()
    wanted = set()
    for module in model.get_submodule(layers_path).modules():
        if any(isinstance(child, nn.Conv1d) for child in module.children()):
            wanted.add("causal-conv1d")
            mixers.add(type(module))
        elif {"A_log", "dt_bias"} & {name for name, _ in module.named_parameters(recurse=False)}:
            mixers.add(type(module))
    sources = "".join(_source(kind) for kind in mixers)
    return tuple(sorted(wanted | {package for word, package in KERNEL_WORDS.items() if word in sources}))


def _source(kind: type[Any]) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def _nesting(model: Any, layers_path: str) -> Iterator[str]:
    yield type(model).__name__
    parts = layers_path.split(".")
    for i, part in enumerate(parts):
        module = model.get_submodule(".".join(parts[: i + 1]))
        if isinstance(module, nn.ModuleList):
            kinds = Counter(type(layer).__name__ for layer in module)
            yield f"{part}: {', '.join(f'{count} × {name}' for name, count in kinds.items())}"
        else:
            yield f"{part}: {type(module).__name__}"


def _shared(path: str, other: str) -> int:
    count = 0
    for one, two in zip(path.split("."), other.split("."), strict=False):
        if one != two:
            break
        count += 1
    return count


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The library warns about missing kernels while it builds; the report says it better."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
