"""A second device for a machine that has none: tensors that compute on the CPU and are labelled with another device.

As on real devices, an operation over tensors of two devices raises; `.to`, copies and 0-d tensors may cross. C++ sees
the CPU, Python sees the label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

AWAY = torch.device("xpu", 0)
HERE = torch.device("cpu")
CROSSING = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class Away(torch.Tensor):
    """A tensor on the device AWAY; `inner` holds its values."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Away:
        made: Away = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return AWAY

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # C++ takes the tensor for one on the CPU, which needs no copy to get there.
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype)
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
        with _disable_current_modes():
            inner = self.inner.to(dtype)
        if device is not None and device.type == HERE.type:
            return inner
        return self if inner is self.inner else Away(inner)

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.to(HERE)

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Away({self.inner!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and type(args[0]) is not Away:  # to where another tensor is
            return args[0].to(AWAY, args[1].dtype)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def second_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, AWAY is a device; outside, nothing knows of it."""
    real = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        made = real(data, **options)  # it fills memory of its device behind every mode's back
        return made if device is None else made.to(device)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.xpu, "_lazy_init", lambda: None)
    with _Mode(), torch.no_grad():
        yield


def sharded(model: Any, first_away: int) -> Any:
    """The layers from `first_away` on are AWAY, everything else here; accelerate's hooks move what goes between."""
    for index, layer in enumerate(model.model.layers):
        if index >= first_away:
            _move(layer)
        add_hook_to_module(layer, AlignDevicesHook(execution_device=AWAY if index >= first_away else HERE))
    for name, module in model.model.named_children():
        if name != "layers":
            add_hook_to_module(module, AlignDevicesHook(execution_device=HERE))
    return model


def _move(layer: torch.nn.Module) -> None:
    for module in layer.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(parameter.detach().to(AWAY), requires_grad=False)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = buffer.to(AWAY)


def _run(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = list(_tensors((*args, *kwargs.values())))
    asked = kwargs.get("device")
    if asked is None and not any(type(value) is Away for value in given):
        return func(*args, **kwargs)
    met = {type(value) is Away for value in given if value.ndim} or {type(value) is Away for value in given}
    if len(met) > 1 and func not in CROSSING:
        raise RuntimeError(f"{func}: expected all tensors to be on one device, found {AWAY} and {HERE}")
    if asked is not None:
        goes_away = torch.device(asked).type == AWAY.type
        kwargs = {**kwargs, "device": HERE}
    else:
        goes_away = type(args[0]) is Away if func is torch.ops.aten.copy_.default else met == {True}
    result = func(*(_inner(value) for value in args), **{name: _inner(value) for name, value in kwargs.items()})
    known = {id(value.inner): value for value in given if type(value) is Away}  # results in place
    return _outer(result, known) if goes_away else result


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _inner(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_inner(item) for item in value]
    return value.inner if type(value) is Away else value


def _outer(value: Any, known: Mapping[int, Away]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_outer(item, known) for item in value)
    return known.get(id(value), Away(value)) if isinstance(value, torch.Tensor) else value
