"""Mixers intercepted for one verify, with their states out of reach of everything else.

A state at the start of the block is kept by reference, and layers update states in place. A mixer that the interception
does not reach (compiled, or replaced after the measurement) would destroy it before anyone could count the calls. So
while a block is verified a mixer's slots hold a tensor that refuses every use, until its replaced forward is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .mixers import Forward, Mixer, mentions, replaced_forwards, slots_of
from .refusal import RuntimeRefusal
from .slots import Slot


@contextmanager
def intercepted(
    makers: Mapping[nn.Module, Callable[[Forward], Forward]], mixers: Sequence[Mixer], cache: Any
) -> Iterator[None]:
    """`replaced_forwards`, with the states of `mixers` in `cache` withheld from all but the replaced forwards.

    Raises RuntimeRefusal where other code uses a state. Whatever happens, the states are in their slots afterwards.
    """
    withheld: dict[nn.Module, list[tuple[Slot, Tensor]]] = {}
    for mixer, slots in zip(mixers, slots_of(mixers, cache), strict=True):
        withheld.setdefault(mixer.module, []).extend((slot, slot.tensor) for slot in slots)

    def give_back(module: nn.Module) -> None:
        for slot, tensor in withheld.pop(module, ()):
            slot.put(tensor)

    def giving_back(module: nn.Module, maker: Callable[[Forward], Forward]) -> Callable[[Forward], Forward]:
        def make(original: Forward) -> Forward:
            replaced = maker(original)

            def forward(*args: Any, **kwargs: Any) -> Any:
                if mentions(cache, args, kwargs):
                    give_back(module)
                return replaced(*args, **kwargs)

            return forward

        return make

    for module, kept in withheld.items():
        for slot, tensor in kept:
            slot.put(_Withheld.like(tensor, f"{type(module).__name__} of layer {slot.layer}"))
    try:
        with replaced_forwards({module: giving_back(module, maker) for module, maker in makers.items()}):
            yield
    finally:
        for module in list(withheld):
            give_back(module)


class _Withheld(Tensor):
    """Has the shape, dtype and device of a state, in no memory of its own; anything done with it is refused."""

    owner: str
    stands_for: torch.device

    @staticmethod
    def like(tensor: Tensor, owner: str) -> _Withheld:
        stand_in = torch.empty((), dtype=tensor.dtype).expand(tensor.shape).as_subclass(_Withheld)
        stand_in.owner, stand_in.stands_for = owner, tensor.device
        return stand_in

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.stands_for

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        owner = next((arg.owner for arg in _flat(args, kwargs) if isinstance(arg, _Withheld)), "a mixer")
        raise RuntimeRefusal(
            f"{owner} uses its state outside the forward that the verification replaces "
            "(compiled, or exchanged since it was measured?); nothing was changed"
        )


# Questions about the tensor itself; `__get__` is how its attributes are read.
_HARMLESS = frozenset(
    {"__get__", "__set__", "dim", "ndimension", "size", "stride", "numel", "element_size", "untyped_storage"}
)


def _flat(args: Any, kwargs: Any) -> Iterator[Any]:
    for value in [*args, *(kwargs or {}).values()]:
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value
