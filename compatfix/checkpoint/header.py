"""The header of a safetensors file: names, dtypes, shapes and places of its tensors.

The format: eight bytes (little-endian) with the length of a JSON object, the object, then the tensors' bytes. The
checks are those of the reference reader, which refuses a file that fails one of them only when it is loaded.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

# The reference reader's own limit.
LONGEST_HEADER = 100_000_000
# Shapes and places are unsigned 64-bit numbers in the format.
LARGEST = 2**64 - 1

# Bits per element.
BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as a file stores it; `bytes` is its length in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: str

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What one file says of itself. `problem`: why it cannot be loaded as it is; then `tensors` may be incomplete."""

    file: str
    bytes: int
    tensors: tuple[StoredTensor, ...] = ()
    problem: str | None = None


class _Bad(Exception):
    pass


def read_header(path: Path, name: str | None = None) -> Header:
    """Reads the header of a file and holds it against the file's size. Never raises for what the file holds.

    `name` is what the file is called in an index, where that is more than its own name.
    """
    name = path.name if name is None else name
    try:
        size = path.stat().st_size
    except OSError as error:
        return Header(name, 0, problem=f"cannot be read: {error.strerror or error}")
    tensors: list[StoredTensor] = []
    try:
        with path.open("rb") as file:
            head = file.read(8)
            if len(head) < 8:
                raise _Bad(_short_file(size, head))
            length = struct.unpack("<Q", head)[0]
            if length > LONGEST_HEADER:
                raise _Bad(f"is no safetensors file: its header would be {length} bytes long{_pointer(head)}")
            if length > size - 8:
                raise _Bad(f"is truncated inside its header ({size} bytes, the header alone has {length})")
            raw = file.read(length)
        problem = _content(name, raw, size - 8 - length, tensors)
    except _Bad as bad:
        problem = str(bad)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    return Header(name, size, tuple(tensors), problem)


def _short_file(size: int, head: bytes) -> str:
    return "is empty" if size == 0 else f"is truncated: {size} bytes{_pointer(head)}"


def _pointer(head: bytes) -> str:
    """A clone of a repository without git-lfs leaves small text files in the place of weights."""
    return " (a git-lfs pointer: fetch the file with `git lfs pull`)" if head.startswith(b"version ") else ""


def _content(file: str, raw: bytes, room: int, tensors: list[StoredTensor]) -> str | None:
    """Fills `tensors`; returns what is wrong with the file as a whole."""
    try:
        header = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _Bad(f"has a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _Bad(f"has a header that is a {type(header).__name__}, not an object")
    places: list[tuple[int, int, str]] = []
    for name, told in header.items():
        if name == "__metadata__":
            continue
        tensor, begin, end = _tensor(file, name, told)
        tensors.append(tensor)
        places.append((begin, end, name))
    return next(_misplaced(sorted(places), room), None)


def _tensor(file: str, name: str, told: Any) -> tuple[StoredTensor, int, int]:
    try:
        dtype, shape, (begin, end) = told["dtype"], told["shape"], told["data_offsets"]
        whole = all(type(number) is int and 0 <= number <= LARGEST for number in (*shape, begin, end))
        whole = whole and prod(shape) <= LARGEST
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole or not isinstance(dtype, str):
        raise _Bad(f"has a header whose entry {name!r} is not one of a tensor")
    # A dtype that came into the format later: its size is taken on trust.
    wanted = (prod(shape) * BITS[dtype] + 7) // 8 if dtype in BITS else end - begin
    if end - begin != wanted:
        raise _Bad(f"stores {name} ({dtype}, {list(shape)}) in {end - begin} bytes; it needs {wanted}")
    return StoredTensor(name, dtype, tuple(shape), wanted, file), begin, end


def _misplaced(places: list[tuple[int, int, str]], room: int) -> Iterator[str]:
    reached = 0
    for begin, end, name in places:
        if begin < reached:
            yield f"has tensors that lie over one another, {name} among them"
        if begin > reached:
            yield f"has a gap of {begin - reached} bytes before {name}"
        reached = end
    if reached > room:
        yield f"is truncated: {room} bytes of tensors, its header speaks of {reached}"
    if reached < room:
        yield f"has {room - reached} bytes behind its last tensor"
