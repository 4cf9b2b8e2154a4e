"""Tree forms: one forward of the target, in which each mixer runs once over all nodes by a form that fits its kind.

A form knows one kind of mixer by what it keeps in the cache and by the parts of its forward. What the mixer recorded
during a verify is enough to rebuild its states at the end of any path, so that a commit needs no second forward, and no
state is held per node. A strategy is a choice of forms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from ..mixers import Forward, Mixer, mentions, slots_of
from ..refusal import RuntimeRefusal
from ..slots import Slot
from ..trees import Tree
from ..withheld import intercepted
from .base import Block, Facts, Record, Strategy
from .mixer_levels import check_calls

_KINDS = {"conv": "conv window", "recurrent": "recurrent state", "linear": "linear state"}
_SYNONYMS = {"ssm": "recurrent"}


class Kept(ABC):
    """What one mixer's states at any node are rebuilt from."""

    @abstractmethod
    def put(self, slots: Mapping[str, Slot], tree: Tree, path: Sequence[int]) -> None:
        """Puts the states after `path`, which starts at the root, into the mixer's slots (by kind of state)."""


class Pass(ABC):
    """One mixer's share of one verify. `states` are the committed ones, by kind; they must not be written to."""

    def __init__(self, tree: Tree, states: Mapping[str, Tensor]) -> None:
        self.tree = tree
        self.states = states

    @abstractmethod
    def forward(
        self, original: Forward, module: nn.Module, cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The mixer's output over all nodes, in the shape of its own forward's, `original`."""

    @abstractmethod
    def kept(self) -> Kept:
        """What a commit needs. Raises RuntimeRefusal where the mixer did not go the way that it was expected to go."""


class Form(ABC):
    """How mixers of one kind are run over a tree. Stateless."""

    name: ClassVar[str]
    keeps: ClassVar[tuple[str, ...]]  # kinds of states, in alphabetical order

    def obstacle(self, mixer: Mixer) -> str | None:
        """Why this mixer is not of the kind, or cannot be reached."""
        if sorted(kind_of(name) for name in mixer.names) != list(self.keeps):
            wanted = " and ".join(f"one {_KINDS[kind]}" for kind in self.keeps)
            return f"keeps {', '.join(mixer.names)}, not {wanted}"
        return self.missing(mixer)

    @abstractmethod
    def missing(self, mixer: Mixer) -> str | None:
        """Which part of the mixer is missing, if one is."""

    @abstractmethod
    def begin(self, tree: Tree, states: Mapping[str, Tensor]) -> Pass: ...


class TreeForms(Strategy):
    """Every mixer by the first of `mixer_forms` that fits it."""

    mixer_forms: ClassVar[tuple[Form, ...]]

    def obstacle(self, facts: Facts) -> str | None:
        mixers = facts.mixers
        if not mixers.found:
            return "no module keeps state in the cache"
        if mixers.unexplained:
            layer, name = mixers.unexplained[0]
            return f"{name} of layer {layer} is changed by no module with a layer_idx"
        for mixer in mixers.found:
            reasons = [form.obstacle(mixer) for form in self.mixer_forms]
            if all(reasons):
                told = reasons[0] if len(reasons) == 1 else "no tree form fits it"
                return f"{type(mixer.module).__name__} of layer {mixer.layer}: {told}"
        return None

    def form_of(self, mixer: Mixer) -> Form:
        if len(self.mixer_forms) == 1:
            return self.mixer_forms[0]
        return next(form for form in self.mixer_forms if form.obstacle(mixer) is None)

    def run(self, facts: Facts, block: Block) -> tuple[Any, Record]:
        mixers = facts.mixers.found
        slots = [_by_kind(own) for own in slots_of(mixers, block.cache)]
        passes: list[Pass | None] = [None] * len(mixers)
        makers = {
            mixer.module: _maker(i, mixer, self.form_of(mixer), slots[i], block, passes)
            for i, mixer in enumerate(mixers)
        }
        with intercepted(makers, mixers, block.cache):
            output = block.forward(facts)
        check_calls([mixer for mixer, begun in zip(mixers, passes, strict=True) if begun is not None], facts)
        return output, FormsRecord(block.start, block.tree, mixers, [begun.kept() for begun in passes if begun])


class FormsRecord(Record):
    """What each mixer keeps of a verify; no state per node."""

    def __init__(self, start: int, tree: Tree, mixers: Sequence[Mixer], kept: Sequence[Kept]) -> None:
        super().__init__(start, tree)
        self.mixers = tuple(mixers)
        self.kept = tuple(kept)

    def keep_states(self, cache: Any, path: Sequence[int]) -> None:
        for slots, kept in zip(slots_of(self.mixers, cache), self.kept, strict=True):
            kept.put(_by_kind(slots), self.tree, path)


def kind_of(name: str) -> str:
    """The kind of state that a slot of this name holds."""
    first = name.split("_")[0]
    return _SYNONYMS.get(first, first)


def plain_forward(module: nn.Module) -> Any:
    """The module's own forward, under accelerate's hook where there is one; None where it has been replaced."""
    hooked = module.__dict__.get("_old_forward") if "_hf_hook" in module.__dict__ else None
    forward = hooked if hooked is not None else module.forward
    return forward if getattr(forward, "__self__", None) is module else None


def _maker(
    index: int, mixer: Mixer, form: Form, slots: Mapping[str, Slot], block: Block, passes: list[Pass | None]
) -> Any:
    """The maker of a forward that runs `mixer` by `form`, and leaves its pass at `index` of `passes`."""
    cache = block.cache

    def make(original: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not mentions(cache, args, kwargs):
                return original(*args, **kwargs)
            if passes[index] is not None:
                raise RuntimeRefusal(
                    f"{type(mixer.module).__name__} of layer {mixer.layer} was called twice in one forward"
                )
            states = {kind: slot.tensor for kind, slot in slots.items()}
            begun = passes[index] = form.begin(block.tree, states)
            try:
                return begun.forward(original, mixer.module, cache, args, kwargs)
            finally:
                # Versions without update methods assign the states themselves.
                for kind, slot in slots.items():
                    slot.put(states[kind])

        return forward

    return make


def _by_kind(slots: Sequence[Slot]) -> dict[str, Slot]:
    return {kind_of(slot.name): slot for slot in slots}
