"""Which class a loader gives for a config, found as the library's Auto classes find it, without loading anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import transformers

CAUSAL = "AutoModelForCausalLM"
# Loaders that give a model that can generate text, in the order in which they are worth trying.
LOADERS = (CAUSAL, "AutoModelForImageTextToText", "AutoModelForMultimodalLM")


class NoClass(Exception):
    """The installed transformers has no class for this config and this loader."""


@dataclass(frozen=True)
class Resolved:
    """A class and the config that it is built from: the text part where the loader swaps a wrapper for it."""

    loader: str
    model_class: type[Any]
    config: Any

    @property
    def name(self) -> str:
        return self.model_class.__name__


def config_from_dict(config: dict[str, Any]) -> Any:
    """A library config object from a config.json; raises NoClass for a model type that the library does not know.

    `auto_map` is dropped: no remote code is looked at, and a class of the library is used or none.
    """
    fields = {name: value for name, value in config.items() if name != "auto_map"}
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise NoClass(f"transformers {transformers.__version__} does not know the model type {model_type!r}")
    return transformers.CONFIG_MAPPING[model_type].from_dict(fields)


def resolve(config: Any, loader: str = CAUSAL) -> Resolved:
    """The class that `loader` gives for `config`: an Auto class by name, or a class of the library by its own name."""
    auto = getattr(transformers, loader, None)
    if auto is None:
        raise NoClass(f"transformers {transformers.__version__} has no {loader}")
    mapping = getattr(auto, "_model_mapping", None)
    model_class = auto if mapping is None else _from_mapping(config, mapping, loader)
    return Resolved(loader, model_class, _swapped(config, model_class))


def alternatives(config: Any) -> Iterator[Resolved]:
    """Every generating class that some loader or config.architectures names for this config, each once."""
    seen: set[str] = set()
    for loader in (*LOADERS, *(getattr(config, "architectures", None) or ())):
        try:
            resolved = resolve(config, loader)
        except NoClass:
            continue
        if resolved.name not in seen:
            seen.add(resolved.name)
            yield resolved


def _from_mapping(config: Any, mapping: Any, loader: str) -> type[Any]:
    if type(config) not in mapping:
        raise NoClass(f"{loader} has no class for the model type {config.model_type!r}")
    found = mapping[type(config)]
    if not isinstance(found, (list, tuple)):
        return found  # type: ignore[no-any-return]
    by_name = {model_class.__name__: model_class for model_class in found}
    named = [by_name[name] for name in getattr(config, "architectures", None) or () if name in by_name]
    return (named or list(found))[0]  # type: ignore[no-any-return]


def _swapped(config: Any, model_class: type[Any]) -> Any:
    """The text part of a wrapper's config where the class is the text part's own; the config as it is elsewhere."""
    text = config.get_text_config()
    wanted = getattr(model_class, "config_class", None)
    return text if text is not config and wanted is type(text) else config
