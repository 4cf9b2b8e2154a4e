"""`--device-map`: one of accelerate's strategies, a device, or a JSON object of modules to devices. Free of torch."""

from __future__ import annotations

import json
import re

from compatfix.errors import UsageError

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")

DeviceMap = str | dict[str, int | str]


def check_device(text: str) -> None:
    """Raises UsageError for what is no device; whether the machine has it is seen by the worker."""
    if re.fullmatch(r"(cpu|mps|cuda(:\d+)?)", text) is None:
        raise UsageError(f"--device {text}: give cpu, mps, cuda, cuda:1, …")


def read_device_map(text: str) -> DeviceMap:
    """Raises UsageError for what is none of these."""
    if not text.lstrip().startswith("{"):
        if text in STRATEGIES or text.partition(":")[0] in ("cpu", "cuda", "mps", "xpu"):
            return text
        raise UsageError(f"--device-map {text}: neither {', '.join(STRATEGIES)}, a device, nor a JSON object")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--device-map is not valid JSON: {error}") from None
    places = found.values() if isinstance(found, dict) else ()
    if not places or any(isinstance(p, bool) or not isinstance(p, (int, str)) or p == "meta" for p in places):
        raise UsageError("--device-map: an object of module names to devices (numbers or names, disk among them)")
    return {str(name): place for name, place in found.items()}
