"""Reads and judges config.json without torch, so that bad input is answered at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compatfix.errors import UsageError
from compatfix.introspect.shrink import TEXT_KEYS

CONFIG = "config.json"
# A draft of the DFlash shape is known; no code of its own is needed or run.
DRAFT_MARKS = ("dflash_config", "num_target_layers", "block_size")


def read_config(path: str | Path) -> dict[str, Any]:
    """The config.json of a model directory, or the file itself; UsageError says in one line what is wrong with it."""
    place = Path(path)
    if place.suffix == ".gguf" or _only_gguf(place):
        raise UsageError(f"{path}: GGUF is not read; give the directory of the transformers checkpoint")
    try:
        if not place.exists():
            raise UsageError(f"{path} does not exist (a model directory with a {CONFIG} is needed)")
        file = place / CONFIG if place.is_dir() else place
        if not file.exists():
            raise UsageError(f"no {CONFIG} in {path} (is this a model directory?)")
        if not file.is_file():
            raise UsageError(f"{file} is no regular file")
        data = json.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: byte {error.start}") from error
    except ValueError as error:
        raise UsageError(f"{file} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{file} is nested too deeply to be a model's config") from error
    if not isinstance(data, dict):
        raise UsageError(f"{file} holds a {type(data).__name__} where a model's config is an object")
    return data


def _only_gguf(place: Path) -> bool:
    try:
        return place.is_dir() and not (place / CONFIG).exists() and any(place.glob("*.gguf"))
    except OSError:
        return False


def read_target_config(path: str | Path) -> dict[str, Any]:
    """A target's config: read_config, and it names a model type and is no draft."""
    config = read_config(path)
    if not isinstance(config.get("model_type"), str):
        raise UsageError(f"{CONFIG} in {path} has no model_type, so its class cannot be found")
    if is_draft(config):
        raise UsageError(f"{path} holds a DFlash draft; give the target here and the draft with --draft")
    return config


def is_draft(config: dict[str, Any]) -> bool:
    """Whether a config has the marks of a DFlash draft."""
    architectures = config.get("architectures") or []
    named = any("DFlash" in str(name) for name in architectures if isinstance(architectures, list))
    return isinstance(config.get("dflash_config"), dict) or named or all(config.get(n) for n in DRAFT_MARKS[1:])


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model; the config itself where it is not a wrapper."""
    for key in TEXT_KEYS:
        part = config.get(key)
        if isinstance(part, dict):
            return part
    return config
