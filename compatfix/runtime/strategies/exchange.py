"""Tree forms that run a mixer's own forward, with some of the functions that it calls exchanged.

The forward runs on a copy that sees other names (see mixers.with_globals) and on a cache that stores nothing; nothing
shared is changed. The causal convolution is the part that all such mixers have in common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..mixers import Forward, Mixer, StandIn, innermost, with_globals
from ..refusal import RuntimeRefusal
from ..slots import Slot
from ..tree_conv import behind, tree_conv
from ..trees import Tree
from .forms import Form, Kept, Pass, plain_forward

# What library versions call the convolution, as a module global or as an attribute of the mixer.
CONVS = ("causal_conv1d_fn",)

Part = Callable[..., Any]
Recorded = TypeVar("Recorded")


class ExchangeForm(Form):
    """Mixers whose forward calls, for each of `parts`, a function of one of the names that library versions have."""

    parts: ClassVar[tuple[tuple[str, ...], ...]]

    def missing(self, mixer: Mixer) -> str | None:
        forward = plain_forward(mixer.module)
        function = innermost(forward) if forward is not None else None
        if function is None:
            return "its forward has been replaced and cannot be read"
        for names in self.parts:
            if not any(name in function.__code__.co_names for name in names):
                return f"its forward calls no {names[-1]}"
        try:
            with_globals(forward.__func__, {})
        except TypeError as error:
            return str(error)
        return None


class ExchangePass(Pass):
    """The exchanged convolution, and its inputs: (1, C, L + N) each, the committed window, then those of the nodes."""

    def __init__(self, tree: Tree, states: Mapping[str, Tensor]) -> None:
        super().__init__(tree, states)
        self.inputs: list[Tensor] = []

    def forward(
        self, original: Forward, module: nn.Module, cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        frozen = _Frozen(cache, self.states["conv"])
        parts = self.exchanged()
        # Older versions keep the functions as attributes of the mixer.
        attributes = {name: part for name, part in parts.items() if hasattr(module, name)}
        function: Any = getattr(original, "__func__", None)
        return with_globals(function, parts)(
            StandIn(module, attributes) if attributes else module,
            *(frozen if value is cache else value for value in args),
            **{
                name: None if name == "attention_mask" else frozen if value is cache else value
                for name, value in kwargs.items()
            },
        )

    def exchanged(self) -> dict[str, Part]:
        """What takes the place of which of the mixer's functions."""
        return dict.fromkeys(CONVS, self.conv)

    def conv(self, *args: Any, **kwargs: Any) -> Tensor:
        """In place of causal_conv1d_fn(x, weight, bias, activation=…)."""
        named = {**dict(zip(("x", "weight", "bias"), args, strict=False)), **kwargs}
        x: Tensor = named["x"] if "x" in named else named["hidden_states"]
        weight: Tensor = named["weight"]
        if x.shape[-1] == self.tree.size:  # the library did not prepend the committed window
            x = behind(self.states["conv"], x)
        self.inputs.append(x)
        activation = named.get("activation")
        windows = self.tree.windows(weight.shape[-1], x.shape[-1] - self.tree.size, x.device)
        return tree_conv(x, weight, named.get("bias"), ACT2FN[activation] if activation else None, windows)

    def kept(self) -> Kept:
        return ConvKept(_once(self.inputs, "convolution"))


class RulePass(ExchangePass):
    """The exchanged convolution and recurrence, and what the recurrence recorded."""

    names: ClassVar[tuple[str, ...]]  # what library versions call the recurrence

    def __init__(self, tree: Tree, states: Mapping[str, Tensor]) -> None:
        super().__init__(tree, states)
        self.records: list[RuleRecord] = []

    def exchanged(self) -> dict[str, Part]:
        return {**super().exchanged(), **dict.fromkeys(self.names, self.rule)}

    @abstractmethod
    def rule(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the library's function; leaves a record."""

    def kept(self) -> Kept:
        return RuleKept(_once(self.inputs, "convolution"), _once(self.records, "recurrence"))


class RuleRecord(Protocol):
    """What a recurrent state is rebuilt from."""

    def state_after(self, path: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class ConvKept(Kept):
    inputs: Tensor  # (1, C, L + N): the committed conv window, then the inputs of the nodes

    def put(self, slots: Mapping[str, Slot], tree: Tree, path: Sequence[int]) -> None:
        put_window(slots["conv"], self.inputs, tree, path[-1])


@dataclass(frozen=True)
class RuleKept(ConvKept):
    record: RuleRecord

    def put(self, slots: Mapping[str, Slot], tree: Tree, path: Sequence[int]) -> None:
        slot = slots["recurrent"]
        slot.put(self.record.state_after(tree.rows(path, slot.tensor.device)).to(slot.tensor.dtype))
        super().put(slots, tree, path)


def put_window(slot: Slot, inputs: Tensor, tree: Tree, node: int) -> None:
    """The conv window after `node`, from the recorded inputs (1, C, L + N)."""
    window = tree.windows(slot.tensor.shape[-1], inputs.shape[-1] - tree.size, inputs.device)[node]
    slot.put(inputs.index_select(-1, window).to(slot.tensor.dtype))


class _Frozen:
    """A cache that hands out what a mixer asks for and stores nothing."""

    def __init__(self, cache: Any, window: Tensor) -> None:
        self._cache = cache
        self._window = window

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update_conv_state(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        return behind(self._window, inputs)

    def update_recurrent_state(self, state: Tensor, *_: Any, **__: Any) -> Tensor:
        return state


def _once(recorded: Sequence[Recorded], part: str) -> Recorded:
    if len(recorded) != 1:
        raise RuntimeRefusal(f"a mixer called its {part} {len(recorded)} times; once was expected")
    return recorded[0]
