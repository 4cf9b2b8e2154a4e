"""Dataclasses to JSON and back. Only the front turns JSON into objects, so only the front needs cattrs."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Turns dataclasses, tuples, sets and bytes into what `json` accepts; refuses anything else that JSON lacks."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(v) for v in value)
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} does not serialise to JSON")


def to_json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(to_plain(value), indent=indent, ensure_ascii=False)


def to_finite_json(value: Any, *, indent: int | None = None) -> str:
    """The same as a file for any reader: JSON has no NaN and no infinity, so they become null."""
    return json.dumps(_finite(to_plain(value)), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(cls: type[T], data: Any) -> T:
    """Rebuilds a dataclass from what `to_plain` made of it. Unknown keys are ignored (a newer worker may send more)."""
    from cattrs import Converter

    converter = Converter()
    # Files have null for what is no finite number (to_finite_json).
    converter.register_structure_hook(float, lambda v, _: math.nan if v is None else float(v))
    converter.register_structure_hook(bytes, lambda v, _: base64.b64decode(v["base64"]))
    return converter.structure(data, cls)
