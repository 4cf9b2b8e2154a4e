"""Dtypes as configs name them. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.checkpoint.quantisation import describe_quantisation
from compatfix.introspect.configfile import text_config

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1}


def dtype_of(config: Mapping[str, Any]) -> str:
    """The dtype that loading without an argument uses: the config's, else float32."""
    for part in (config, text_config(dict(config))):
        for name in ("dtype", "torch_dtype"):
            if isinstance(part.get(name), str):
                return str(part[name]).removeprefix("torch.")
    return "float32"


def bytes_of(dtype: str) -> int:
    return BYTES.get(dtype, 4)


def quantisation_of(config: Mapping[str, Any]) -> tuple[str | None, float | None]:
    """The quantisation method of the checkpoint and the bytes it stores for a weight, where it can be told."""
    found = describe_quantisation(config, None)
    if found is None:
        return None, None
    return found.method, found.bits / 8 if found.bits else None
