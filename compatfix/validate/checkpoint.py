"""Whether directories hold weights at all, told without torch and before anything runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatfix.errors import UsageError

KINDS = ("*.safetensors", "*.bin")
# As the library looks for them: the single file comes first, and an index beside it is not read.
FORMS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)


def check_checkpoint(target: str, draft: str | None) -> None:
    """Raises UsageError, in one line, where real weights of both cannot be loaded from these directories."""
    if draft is None:
        raise UsageError("real weights need a draft: give its directory with --draft")
    for directory in (Path(target), Path(draft)):
        _check_directory(directory)


def weight_bytes(directory: Path) -> int:
    """The size of all weight files of a directory."""
    return sum(path.stat().st_size for kind in KINDS for path in directory.glob(kind))


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise UsageError(f"no weights in {directory}: real weights need a model directory")
    for single, index in FORMS:
        if (directory / single).exists():
            return
        if (directory / index).exists():
            _check_index(directory, directory / index)
            return
    if not any(path.is_file() for kind in KINDS for path in directory.glob(kind)):
        raise UsageError(f"no weights in {directory}: neither .safetensors nor .bin files")


def _check_index(directory: Path, index: Path) -> None:
    """Every shard that the index names lies in the directory. Links are followed: a hub's cache is made of them."""
    names = sorted({str(name) for name in _weight_map(index).values()})
    for name in names:
        path = os.path.normpath(name)
        if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
            raise UsageError(f"{index} points outside its directory: {name}")
    absent = [name for name in names if not (directory / name).is_file()]
    if absent:
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise UsageError(f"{directory} is incomplete: {index.name} names {absent[0]}, which is not there{more}")


def _weight_map(index: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(index.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {index}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{index} is not valid JSON: {error}") from error
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found:
        raise UsageError(f"{index} has no weight_map, so its shards are not known")
    return found
