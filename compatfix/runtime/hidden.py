"""Hidden states that are needed, and no others: measured on the consumer, captured where the target makes them.

A draft reads a few entries of `output.hidden_states`; `output_hidden_states=True` keeps one tensor per layer. In a call
of `verify`, `output_hidden_states=used_by(consumer)` keeps what the consumer reads. Which entries that are is seen by
handing it a sequence that remembers; where a target makes its entries is seen by watching one full forward of a few
tokens, for each entry by the identity of the tensor, and checked by a second forward that captures.
"""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from .caches import new_cache
from .calls import Call, bind
from .mixers import Forward, replaced_forwards
from .parts import input_embeddings
from .probe import untouched

log = logging.getLogger(__name__)

Consumer = Callable[[Sequence[Any]], object]

# A plain forward that is given a UsedBy reads its items as layers to return: more than any model has.
EVERY = range(4096)


class UsedBy:
    """Stands for `True` in `output_hidden_states`, and says who is going to read the hidden states."""

    def __init__(self, consumer: Consumer | Sequence[int]) -> None:
        self.consumer = consumer if callable(consumer) else tuple(consumer)

    def __iter__(self) -> Iterator[int]:
        return iter(EVERY)


def used_by(consumer: Consumer | Sequence[int]) -> UsedBy:
    """For `output_hidden_states` in a call of `verify`: only the entries that `consumer` reads are kept.

    Args: consumer, a function of the sequence of hidden states without effects of its own, which is also called on
    small stand-ins (1, 1, hidden size) to see what it reads; or the indices themselves, entry 0 being the embedding
    output. What cannot be told (an exception, an unusual access) counts as all entries.
    Returns: something true. The output's `hidden_states` keep their length and their indices, with None where nobody
    reads; those that are read lie on the device of the embedding output.
    """
    return UsedBy(consumer)


class Recorder(Sequence[Tensor]):
    """A sequence of hidden states that remembers which were read. Iterating over it reads all, as it must."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self.layout.widths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"hidden state {at} of {len(self)}")
        at %= len(self)
        self.read.add(at)
        return torch.zeros(1, 1, self.layout.widths[at], dtype=self.layout.dtype, device=self.layout.device)


@dataclass(frozen=True)
class Source:
    """Where one entry can be had: what the module called `name` is given or returns, under `key`.

    `key` is the place or the name of an argument, the place in a tuple that is returned, or None for the whole result.
    """

    name: str
    returned: bool
    key: int | str | None


@dataclass(frozen=True)
class Layout:
    """A target's hidden states, entry by entry. Without `sources` they can be had through the target's output only."""

    widths: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    sources: tuple[Source, ...] | None
    key: tuple[Any, ...]

    def read_by(self, consumer: Consumer | Sequence[int]) -> tuple[int, ...]:
        """The entries that a consumer reads, in their order."""
        recorder = Recorder(self)
        try:
            with torch.no_grad():
                if callable(consumer):
                    result = consumer(recorder)
                    if any(isinstance(item, Iterator) for item in (result if isinstance(result, tuple) else (result,))):
                        return tuple(range(len(self.widths)))  # what a lazy one reads, it reads later
                else:
                    for index in consumer:
                        recorder[index]
        except Exception as error:  # whatever it raises on stand-ins, it may go well on the real entries
            log.debug("cannot see which hidden states are read (%s: %s); keeping all", type(error).__name__, error)
            return tuple(range(len(self.widths)))
        return tuple(sorted(recorder.read))


class NotCaptured(Exception):
    """A forward went another way than the one that was watched."""


@dataclass(frozen=True)
class NarrowCall(Call):
    """A call of which only the entries `wanted` of the hidden states are kept.

    Each single forward returns these entries and no others, so that whoever puts outputs together handles a plain
    tuple of tensors; `whole` gives them their places back.
    """

    layout: Layout = field(kw_only=True)
    wanted: tuple[int, ...] = field(kw_only=True)

    def forward(self) -> Any:
        if not self.arguments.get("output_hidden_states"):
            return super().forward()
        if self.layout.sources is None:
            output = self.target(**self.arguments)
            given = output.get("hidden_states") if isinstance(output, Mapping) else None
            if given is None or len(given) != len(self.layout.widths):
                raise NotCaptured("the output holds no such hidden states")
            return _with_states(output, tuple(given[i] for i in self.wanted))
        sources = [self.layout.sources[i] for i in self.wanted]
        taken: dict[Source, Tensor] = {}
        with replaced_forwards(_takers(self.target, sources, taken)):
            output = self.target(**{**self.arguments, "output_hidden_states": False})
        if len(taken) != len(set(sources)) or not isinstance(output, Mapping):
            lost = [i for i, source in zip(self.wanted, sources, strict=True) if source not in taken]
            raise NotCaptured(f"entries {lost} were not made where they had been seen")
        return _with_states(output, tuple(taken[source] for source in sources))

    def whole(self, output: Any) -> Any:
        """The output with every captured entry at its place, on one device, and None at the others."""
        states: list[Tensor | None] = [None] * len(self.layout.widths)
        for index, state in zip(self.wanted, output["hidden_states"], strict=True):
            states[index] = state.to(self.layout.device)
        return _with_states(output, tuple(states))


_layouts: weakref.WeakKeyDictionary[nn.Module, Layout | None] = weakref.WeakKeyDictionary()


def narrowed(call: Call, used: UsedBy) -> Call:
    """The call with what `used` reads and no more, as far as this target lets it be told; else the full call."""
    layout = _layout_of(call.target)
    if layout is None or call.arguments.get("return_dict") is False:
        return call.changed(output_hidden_states=True)
    return _narrow(call.changed(output_hidden_states=True), layout, layout.read_by(used.consumer))


def give_up(call: NarrowCall, reason: NotCaptured) -> Call:
    """The call to make after a capture that failed: through the output, and, if that was it, with everything."""
    log.warning("%s: %s; capturing the hidden states of every layer", type(call.target).__name__, reason)
    if call.layout.sources is None:
        _layouts[call.target] = None
        return Call(**{item.name: getattr(call, item.name) for item in fields(Call)})
    layout = _layouts[call.target] = replace(call.layout, sources=None)
    return replace(call, layout=layout)


def _layout_of(target: nn.Module) -> Layout | None:
    """The measured layout, kept with the target; None where it has no hidden states to tell."""
    known = _layouts.get(target)
    if target not in _layouts or (known is not None and known.key != _key(target)):
        try:
            with untouched(target):
                known = _measured(target)
        except Exception as error:  # whatever a model raises on a few tokens is a reason to leave its output as it is
            log.warning(
                "%s: cannot see where hidden states are made (%s: %s); capturing those of every layer",
                type(target).__name__,
                type(error).__name__,
                error,
            )
            known = None
        _layouts[target] = known
    return known


def _measured(target: nn.Module) -> Layout | None:
    seen: list[tuple[str, tuple[Any, ...], Mapping[str, Any], Any]] = []

    def watching(name: str) -> Callable[[Forward], Forward]:
        def make(original: Forward) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if threading.get_ident() == own:
                    seen.append((name, args, kwargs, result))
                return result

            return forward

        return make

    own = threading.get_ident()
    # What runs compiled would be compiled anew for every forward that is replaced.
    watched = (
        {} if _is_compiled(target) else {module: watching(name) for name, module in target.named_modules() if name}
    )
    with replaced_forwards(watched):
        output = _few_tokens(target).forward()
    states = output.get("hidden_states") if isinstance(output, Mapping) else None
    if not states or not all(isinstance(state, Tensor) for state in states):
        return None
    widths = tuple(state.shape[-1] for state in states)
    layout = Layout(widths, states[0].dtype, states[0].device, None, _key(target))
    sources = _sources(target, states, seen)
    seen.clear()
    if sources is None:
        log.info("%s: hidden states are made in no single place; kept through its output", type(target).__name__)
        return layout
    found = replace(layout, sources=sources)
    again = _narrow(_few_tokens(target), found, tuple(range(len(widths)))).forward()["hidden_states"]
    wrong = [i for i, (one, other) in enumerate(zip(states, again, strict=True)) if not _same(one, other)]
    if wrong:
        log.warning("%s: captured hidden states %s differ from its output's", type(target).__name__, wrong)
        return layout
    return found


def _narrow(call: Call, layout: Layout, wanted: tuple[int, ...]) -> NarrowCall:
    return NarrowCall(**{item.name: getattr(call, item.name) for item in fields(Call)}, layout=layout, wanted=wanted)


def _is_compiled(target: nn.Module) -> bool:
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in target.modules()
    )


def _few_tokens(target: nn.Module) -> Call:
    """A prefill of three tokens on a throw-away cache, with all hidden states."""
    ids = torch.tensor([[1, 2, 3]], device=_key(target)[1])
    arguments = {"input_ids": ids, "past_key_values": new_cache(target), "use_cache": True}
    return bind(target, (), {**arguments, "output_hidden_states": True})


def _sources(
    target: nn.Module, states: Sequence[Tensor], seen: Sequence[tuple[str, tuple[Any, ...], Mapping[str, Any], Any]]
) -> tuple[Source, ...] | None:
    """For each entry the largest module that returns, or else is given, that very tensor, once per forward."""
    calls = Counter(name for name, *_ in seen)
    modules = dict(target.named_modules())
    size = {name: sum(1 for _ in modules[name].modules()) for name in calls}
    # They do not run where the caller passes embeddings.
    left_out = {id(module) for module in input_embeddings(target).modules()}
    found: dict[int, tuple[tuple[bool, int], Source]] = {}
    place = {id(state): index for index, state in enumerate(states)}
    for name, args, kwargs, result in seen:
        if calls[name] != 1 or id(modules[name]) in left_out:
            continue
        several = isinstance(result, (tuple, list))
        offers = [(Source(name, True, key), value) for key, value in enumerate(result)] if several else []
        offers += [(Source(name, True, None), result)]
        offers += [(Source(name, False, key), value) for key, value in enumerate(args)]
        offers += [(Source(name, False, key), value) for key, value in kwargs.items()]
        for source, value in offers:
            index = place.get(id(value))
            rank = (not source.returned, -size[name])
            if index is not None and (index not in found or rank < found[index][0]):
                found[index] = rank, source
    if len(found) != len(states):
        return None
    return tuple(found[index][1] for index in range(len(states)))


def _takers(target: nn.Module, sources: Sequence[Source], taken: dict[Source, Tensor]) -> dict[nn.Module, Any]:
    """Makers of forwards that take the tensors of `sources` as they pass; a second pass takes them back."""
    by_name: dict[str, list[Source]] = {}
    for source in sources:
        by_name.setdefault(source.name, []).append(source)
    own = threading.get_ident()

    def taking(wanted: Sequence[Source]) -> Callable[[Forward], Forward]:
        def make(original: Forward) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if threading.get_ident() == own:  # plain decoding of the same model in another thread
                    for source in wanted:
                        value = _at(source, args, kwargs, result)
                        if isinstance(value, Tensor):
                            if source in taken:
                                raise NotCaptured(f"{source.name} ran more than once")
                            taken[source] = value
                return result

            return forward

        return make

    try:
        return {target.get_submodule(name): taking(wanted) for name, wanted in by_name.items()}
    except AttributeError as error:
        raise NotCaptured(f"a module is gone ({error})") from error


def _at(source: Source, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    if not source.returned:
        if isinstance(source.key, int):
            return args[source.key] if source.key < len(args) else None
        return kwargs.get(source.key) if source.key is not None else None
    if source.key is None:
        return result
    assert isinstance(source.key, int)
    return result[source.key] if isinstance(result, (tuple, list)) and source.key < len(result) else None


def _with_states(output: Any, states: tuple[Tensor | None, ...]) -> Any:
    return type(output)(**{**output, "hidden_states": states})


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal up to what another run of the same computation may change on an accelerator."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    allowed = 16 * torch.finfo(one.dtype).eps
    return torch.allclose(one, other.to(one.device), rtol=allowed, atol=allowed * float(one.abs().max()))


def _key(target: nn.Module) -> tuple[Any, ...]:
    """What a measurement holds for; the device is that of the tokens."""
    weight = next(input_embeddings(target).parameters())
    return weight.dtype, weight.device if weight.device.type != "meta" else torch.device("cpu")
