"""What a run on a real device was made of: the device, the attention, the kernels that its layers call."""

from __future__ import annotations

from typing import Any

from torch import nn

from compatfix.introspect.kernel_calls import Calls, fast_paths
from compatfix.introspect.skeleton import decoder_layers_path, kernel_packages
from compatfix.validate.devices import device_name, input_device
from compatfix.validate.plain import PlainDecoder, text_config

TOKENS = range(1, 9)


def what_ran(target: nn.Module) -> dict[str, Any]:
    """`functions`: by package with fast kernels for these layers, what was called of it, or in its place."""
    return {
        "device": device_name(input_device(target)),
        "attention": str(getattr(text_config(target), "_attn_implementation", None)),
        "functions": called_functions(target),
    }


def called_functions(target: nn.Module) -> dict[str, str]:
    """Watches a prefill and a step of plain decoding."""
    calls = Calls()
    with calls:
        PlainDecoder(target, list(TOKENS)).step(TOKENS[0])
    paths, _ = fast_paths(calls, target, kernel_packages(target, decoder_layers_path(target)))
    return {path.package: ", ".join(path.called or path.substitutes or ("torch operations",)) for path in paths}
