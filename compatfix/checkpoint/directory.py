"""Which files of a directory hold the weights, in the library's order, and what they hold. Free of torch."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from compatfix.checkpoint.header import Header, StoredTensor, read_header

Form = Literal["safetensors", "pickle", "other", "none"]

# As the library looks for them: the single file comes first, and an index beside it is not read.
FORMS: tuple[tuple[Form, str], ...] = (
    ("safetensors", "model.safetensors"),
    ("safetensors", "model.safetensors.index.json"),
    ("pickle", "pytorch_model.bin"),
    ("pickle", "pytorch_model.bin.index.json"),
)
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Files of those endings that hold no weights of the model.
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "rng_state.pth")
INDEX = ".index.json"
# In a directory with this file weight files are holes behind true headers (compatfix.hub.kept).
HEADERS_ONLY = ".compatfix-headers-only.json"


@dataclass(frozen=True)
class Checkpoint:
    """The weights of one directory, as the library would pick them.

    `form`: "other" where there are weight files under names that the library does not look for, "none" without any.
    `problems` are sentences about files that cannot be loaded as they are; `remarks` about what may surprise.
    `unread` are weight files beside those that are loaded. Of pickles only names and sizes are known.
    """

    directory: str
    form: Form
    index: str | None = None
    headers: tuple[Header, ...] = ()
    pickles: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    bytes: int = 0
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every tensor is known: safetensors, and no problem with any of its files."""
        return self.form == "safetensors" and not self.problems

    def by_dtype(self) -> dict[str, tuple[int, int, int]]:
        """Tensors, elements and bytes for each stored dtype, the largest first."""
        counts: dict[str, list[int]] = {}
        for tensor in self.tensors.values():
            row = counts.setdefault(tensor.dtype, [0, 0, 0])
            for place, value in enumerate((1, tensor.elements, tensor.bytes)):
                row[place] += value
        ordered = sorted(counts.items(), key=lambda item: -item[1][2])
        return {dtype: (row[0], row[1], row[2]) for dtype, row in ordered}


def read_checkpoint(directory: Path) -> Checkpoint:
    """Reads headers and index of a model directory. Never raises for what the files hold, and opens no pickle."""
    present = _weight_files(directory)
    form, first = next(((f, n) for f, n in FORMS if (directory / n).is_file()), (None, None))
    if form is None or first is None:
        kind: Form = "other" if present else "none"
        pickles = tuple(name for name in present if name.endswith(PICKLES))
        return Checkpoint(str(directory), kind, pickles=pickles, unread=present, bytes=_sizes(directory, present))
    problems: list[str] = []
    where: Mapping[str, str] = {}
    if first.endswith(INDEX):
        where = weight_map(directory / first, problems)
        names = sorted({name for name in where.values() if inside(name)})
        problems += _outside(first, where)
    else:
        names = [first]
    absent = [name for name in names if not _is_file(directory / name)]
    problems += _absent(first, absent, len(names))
    found = [name for name in names if name not in absent]
    unread = tuple(name for name in present if name not in names)
    pickles = tuple(found) if form == "pickle" else ()
    headers = () if form == "pickle" else tuple(read_header(directory / name, name) for name in found)
    problems += [f"{header.file} {header.problem}" for header in headers if header.problem]
    tensors: dict[str, StoredTensor] = {}
    for header in headers:
        for tensor in header.tensors:
            tensors.setdefault(tensor.name, tensor)
    index = first if first.endswith(INDEX) else None
    if index is not None and form == "safetensors":
        outside = {name for name in where.values() if not inside(name)}
        unsure = {*absent, *outside, *(header.file for header in headers if header.problem)}
        problems += _not_where_the_index_says(index, where, headers, unsure)
    return Checkpoint(
        str(directory),
        form,
        index,
        headers,
        pickles,
        unread,
        tuple(problems),
        tuple(_remarks(index, where, headers, unread)),
        _sizes(directory, tuple(found)),
        tensors,
    )


def _weight_files(directory: Path) -> tuple[str, ...]:
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    except OSError:
        return ()
    return tuple(name for name in names if name.endswith(WEIGHTS) and name not in NOT_WEIGHTS)


def _is_file(path: Path) -> bool:
    """False too for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _sizes(directory: Path, names: tuple[str, ...]) -> int:
    return sum((directory / name).stat().st_size for name in names)


def weight_map(index: Path, problems: list[str]) -> Mapping[str, str]:
    """Which file an index names for each tensor; what is wrong with the index is added to `problems`."""
    try:
        content: Any = json.loads(index.read_bytes().decode("utf-8-sig"))
        found = content.get("weight_map") if isinstance(content, dict) else None
    except OSError as error:
        problems.append(f"{index.name} cannot be read: {error.strerror or error}")
        return {}
    except (ValueError, RecursionError) as error:
        problems.append(f"{index.name} is not valid JSON: {error}")
        return {}
    if not isinstance(found, dict) or not found:
        problems.append(f"{index.name} has no weight_map, so its shards are not known")
        return {}
    return {str(name): str(file) for name, file in found.items()}


def inside(name: str) -> bool:
    """Whether a file name of an index stays below its directory."""
    path = os.path.normpath(name)
    return not os.path.isabs(path) and path.split(os.sep)[0] != os.pardir and "\0" not in name


def _outside(index: str, where: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({name for name in where.values() if not inside(name)}):
        yield f"{index} points outside its directory: {name}"


def _absent(index: str, absent: list[str], of: int) -> Iterator[str]:
    if absent:
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        yield f"{index} names {_short(absent[0])}, which is not there{more}: {len(absent)} of {of} shards are absent"


def _short(name: str) -> str:
    return name if len(name) <= 120 else f"{name[:117]}…"


def _not_where_the_index_says(
    index: str, where: Mapping[str, str], headers: tuple[Header, ...], unsure: set[str]
) -> Iterator[str]:
    stored = {(header.file, tensor.name) for header in headers for tensor in header.tensors}
    astray = [name for name, file in where.items() if file not in unsure and (file, name) not in stored]
    if astray:
        more = f" (and {len(astray) - 1} more)" if len(astray) > 1 else ""
        yield f"{index} says that {astray[0]} is in {where[astray[0]]}, which does not hold it{more}"


def _remarks(
    index: str | None, where: Mapping[str, str], headers: tuple[Header, ...], unread: tuple[str, ...]
) -> Iterator[str]:
    counts = Counter(tensor.name for header in headers for tensor in header.tensors)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        more = f" (and {len(twice) - 1} more)" if len(twice) > 1 else ""
        yield f"{twice[0]} is stored in more than one file{more}"
    unnamed = [name for name in counts if index is not None and name not in where]
    if unnamed:
        more = f" (and {len(unnamed) - 1} more)" if len(unnamed) > 1 else ""
        yield f"{index} does not name {unnamed[0]}{more}, which its shards hold"
    if unread:
        shown = ", ".join(unread[:3]) + (f" and {len(unread) - 3} more" if len(unread) > 3 else "")
        yield f"not read: {shown}"
