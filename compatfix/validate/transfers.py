"""Counts what would make a host wait for its device, on any device, the CPU included.

A tensor on the CPU is read for free, so nothing shows there how often code looks at values; on an accelerator each look
is a synchronisation. Counted are the looks (bool, int, item, tolist, cpu, numpy, equality of whole tensors, and indices
whose number depends on values) and, apart from them, uploads of Python data, which an accelerator's host waits for too.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Methods that hand values to the host without an operator that a dispatch mode would see.
LOOKS = {Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__array__, Tensor.__contains__}
# Operators that do: of one value, of whole tensors, and those whose result's size depends on values.
LOOKING = {
    "_local_scalar_dense",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave.Tensor",
    "unique_consecutive",
    "_unique2",
}
UPLOADS = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy}


@dataclass
class Transfers:
    """Places (file:line of the innermost frame that is not torch's) of what was counted, with how often."""

    reads: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)


@contextmanager
def counted_transfers() -> Iterator[Transfers]:
    """Counts within the block, on this thread."""
    found = Transfers()
    with _Functions(found), _Operators(found):
        yield found


class _Functions(TorchFunctionMode):
    def __init__(self, found: Transfers) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in LOOKS:
            self.found.reads[_place()] += 1
        if function in UPLOADS and args and not isinstance(args[0], Tensor):
            self.found.uploads[_place()] += 1
        return function(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: Transfers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(function).removeprefix("aten.")
        by_mask = name.startswith("index") and any(_is_mask(item) for item in _flat(args[1:]))
        if name in LOOKING or name.partition(".")[0] in LOOKING or by_mask:
            self.found.reads[_place()] += 1
        return function(*args, **(kwargs or {}))


def _is_mask(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dtype == torch.bool and item.ndim > 0


def _flat(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from item
        else:
            yield item


def _place() -> str:
    own, library = str(Path(__file__)), str(Path(torch.__file__).parent)
    frames = [f for f in traceback.extract_stack() if f.filename != own and not f.filename.startswith(library)]
    return f"{frames[-1].filename}:{frames[-1].lineno}"
