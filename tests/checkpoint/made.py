"""Safetensors files made by hand, right ones and wrong ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}
INDEX = "model.safetensors.index.json"


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...]]], *, behind: bytes = b"") -> bytes:
    """A file with these tensors, (dtype, shape) by name, filled with zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return of_header(header, bytes(end) + behind)


def of_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ONE = safetensors({"a.weight": ("BF16", (2, 3))})


def index(where: Mapping[str, str]) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": dict(where)}).encode()


def directory(place: Path, files: Mapping[str, bytes]) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (place / name).write_bytes(data)
    return place
