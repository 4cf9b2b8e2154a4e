"""Suspect: the draft was trained in another precision than it runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.diagnose.pair import Pair, swapped
from compatfix.diagnose.toggle import NotHere, Suspect, Toggle
from compatfix.validate.devices import free_bytes, input_device
from compatfix.validate.watch import Tamper, Watch

GIB = 1 << 30
QUESTION = "Do target and draft lose acceptance to their dtype or to quantisation?"


class Cast(Tamper):
    """The draft is given `dtype`; what it returns has the tree's dtype again."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def around_draft(self, watch: Watch, call: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        own = given["noise_embedding"].dtype
        output = call({name: self._cast(value) for name, value in given.items()})
        if not isinstance(output, Tensor):
            raise NotHere("the draft returns more than its states")
        return output.to(own)

    def _cast(self, value: Any) -> Any:
        return value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def suspects(pair: Pair) -> list[Suspect]:
    name = "dtype"
    if next(pair.draft.parameters()).dtype == torch.float32 == next(pair.target.parameters()).dtype:
        return [Suspect(name, QUESTION, "CF953", reason="both are loaded in float32")]
    if getattr(pair.target.config, "quantization_config", None) is not None:
        why = "the target is quantised, and its own values before that are not in the checkpoint"
        return [Suspect(name, QUESTION, "CF953", (_draft_alone(pair),), unmeasured=why)]
    both = Toggle(
        "target and draft in float32",
        "load target and draft in float32, or find the layer that overflows",
        around=lambda: _both(pair),
        own_text=True,
    )
    return [Suspect(name, QUESTION, "CF953", (_draft_alone(pair), both))]


def _draft_alone(pair: Pair) -> Toggle:
    step = "load the draft in float32 and cast its inputs and its output"
    return Toggle("the draft in float32", step, lambda: Cast(torch.float32), lambda: _wide(pair.draft, pair.draft_dir))


@contextmanager
def _both(pair: Pair) -> Iterator[None]:
    with _wide(pair.target, pair.target_dir), _wide(pair.draft, pair.draft_dir):
        yield


def _wide(model: nn.Module, directory: Path) -> AbstractContextManager[None]:
    """The checkpoint's own values in float32, as far as it has them. Raises NotHere where memory does not hold them."""
    needed = 4 * sum(parameter.numel() for parameter in model.parameters())
    free = free_bytes(input_device(model))
    if free is not None and needed > free:
        raise NotHere(f"a float32 copy needs {needed / GIB:.1f} GiB and {free / GIB:.1f} GiB are free")
    wide: Any = type(model).from_pretrained(directory, dtype=torch.float32, local_files_only=True)  # type: ignore[attr-defined]
    values = dict(wide.named_parameters())
    own = {name: parameter for name, parameter in model.named_parameters() if name in values}
    return swapped({name: (parameter, values[name].data.to(parameter.device)) for name, parameter in own.items()})
