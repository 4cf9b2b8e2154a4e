"""The modules that keep state in the cache: found by watching them, intercepted only while one block is verified."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .slots import Slot, state_slots

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Mixer:
    """A recurrent or conv mixer, with the names of the state slots of its cache layer that it changes."""

    module: nn.Module
    layer: int
    names: tuple[str, ...]

    def slots(self, cache: Any) -> list[Slot]:
        return [slot for slot in state_slots(cache) if slot.layer == self.layer and slot.name in self.names]


@dataclass(frozen=True)
class Mixers:
    found: tuple[Mixer, ...]
    # Changed slots that no module with a layer_idx accounts for.
    unexplained: tuple[tuple[int, str], ...]

    @property
    def stateful(self) -> bool:
        return bool(self.found or self.unexplained)


def find_mixers(target: nn.Module, cache: Any, step: Callable[[], object]) -> Mixers:
    """Which modules change which states of `cache` while `step` decodes one token on it."""
    seen: dict[int, list[Mixer]] = {}

    def watching(module: nn.Module, layer: int) -> Callable[[Forward], Forward]:
        def make(original: Forward) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                before = _states(cache, layer)
                result = original(*args, **kwargs)
                inner = {name for mixer in seen.get(layer, []) for name in mixer.names}
                changed = sorted(_changed(before, _states(cache, layer)))
                names = tuple(name for _, name in changed if name not in inner)
                # Inner modules finish first, so what is left is this module's own doing.
                if names:
                    seen.setdefault(layer, []).append(Mixer(module, layer, names))
                return result

            return forward

        return make

    indices = [(module, getattr(module, "layer_idx", None)) for module in target.modules()]
    candidates = {module: watching(module, index) for module, index in indices if isinstance(index, int)}
    before = _states(cache)
    with replaced_forwards(candidates):
        step()
    found = tuple(mixer for layer in sorted(seen) for mixer in seen[layer])
    explained = {(mixer.layer, name) for mixer in found for name in mixer.names}
    return Mixers(found, tuple(sorted(_changed(before, _states(cache)) - explained)))


def slots_of(mixers: Sequence[Mixer], cache: Any) -> list[list[Slot]]:
    """The state slots of each mixer, in one reading of the cache."""
    by_label = {slot.label: slot for slot in state_slots(cache)}
    return [[by_label[mixer.layer, name] for name in mixer.names] for mixer in mixers]


@contextmanager
def replaced_forwards(makers: Mapping[nn.Module, Callable[[Forward], Forward]]) -> Iterator[None]:
    """Replaces the forward of each module by what its maker makes of it, and leaves all modules as they were.

    Only the instances are touched. Where accelerate has hooked a module, the forward inside its hook is replaced, so
    that the hook still places weights and inputs.
    """
    undo: list[tuple[dict[str, Any], str, bool, Any]] = []
    try:
        for module, maker in makers.items():
            own = module.__dict__
            name = "_old_forward" if "_hf_hook" in own and "_old_forward" in own else "forward"
            original = getattr(module, name)
            undo.append((own, name, name in own, own.get(name)))
            own[name] = maker(original)
        yield
    finally:
        for own, name, existed, value in reversed(undo):
            if existed:
                own[name] = value
            else:
                own.pop(name, None)


def mentions(cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a module is called with this very cache: another generation's calls pass through untouched."""
    return any(value is cache for value in args) or any(value is cache for value in kwargs.values())


def innermost(forward: Forward) -> types.FunctionType | None:
    """The plain function under a bound method's decorators; None where there is none to be found."""
    function = getattr(forward, "__func__", None)
    while function is not None and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function if isinstance(function, types.FunctionType) else None


def with_globals(function: types.FunctionType, names: Mapping[str, Any]) -> types.FunctionType:
    """A copy of `function` that sees `names` in place of its module's globals; decorators are copied around it.

    The module itself stays untouched, so other models of the same class, in this thread or another, never notice.
    """
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return _copy(function, {**function.__globals__, **names}, function.__closure__)
    inner = with_globals(wrapped, names)
    cells = function.__closure__ or ()
    replaced = tuple(types.CellType(inner) if _content(cell) is wrapped else cell for cell in cells)
    if sum(new is not old for new, old in zip(replaced, cells, strict=True)) != 1:
        raise TypeError(f"{function.__qualname__}: a decorator does not hold what it decorates in one closure cell")
    return _copy(function, function.__globals__, replaced)


class StandIn:
    """Looks like `module`, except for the attributes given here: a `self` for a forward to be run with other parts."""

    def __init__(self, module: nn.Module, attributes: Mapping[str, Any]) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _copy(
    function: types.FunctionType, names: dict[str, Any], closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _states(cache: Any, layer: int | None = None) -> dict[tuple[int, str], Tensor]:
    return {slot.label: slot.tensor.clone() for slot in state_slots(cache) if layer is None or slot.layer == layer}


def _changed(before: dict[tuple[int, str], Tensor], after: dict[tuple[int, str], Tensor]) -> set[tuple[int, str]]:
    return {label for label, now in after.items() if label not in before or not torch.equal(before[label], now)}
