"""What a suspect is, and how several toggles stand around one generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from compatfix.validate.watch import Forward, Tamper, Watch

BOTH = ("chain", "tree")


class NotHere(Exception):
    """A toggle cannot be carried out on this pair; the message says why, and the toggle is unmeasured."""


@dataclass(frozen=True)
class Toggle:
    """One change from outside. `tamper` is made anew for every generation; `around` holds while a generation runs.

    `prompts` replaces the prompts by the same texts in another form. `step` says what to edit where this toggle gains.
    `own_text` toggles give the target another text by right, so that their text is not compared. `repairs_text` toggles
    can mend a text; any other may do so by luck only, when other drafts meet a broken verification.
    """

    name: str
    step: str
    tamper: Callable[[], Tamper] | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    modes: tuple[str, ...] = BOTH
    prompts: Sequence[list[int]] | None = None
    own_text: bool = False
    repairs_text: bool = False


@dataclass(frozen=True)
class Read:
    """Evidence that was read from files or weights: "certain" stands by itself, "hint" only beside a measured floor."""

    strength: str
    text: str


@dataclass(frozen=True)
class Suspect:
    """A possible cause. Without toggles and without `read` it does not apply, for the `reason` given.

    `unmeasured` says why it could not be measured here, where that is so; `cleared` what was read that speaks for it.
    """

    name: str
    question: str
    code: str
    toggles: tuple[Toggle, ...] = ()
    reason: str = ""
    unmeasured: str = ""
    cleared: str = ""
    read: Read | None = None
    step: str = ""


@dataclass
class Stack(Tamper):
    """Several tampers as one; around the draft the first is the outermost."""

    tampers: list[Tamper] = field(default_factory=list)

    def before_verify(self, watch: Watch, cache: Any) -> None:
        for tamper in self.tampers:
            tamper.before_verify(watch, cache)

    def inner(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for tamper in self.tampers:
            tamper.inner(watch, args, kwargs)

    def after_verify(self, watch: Watch, forward: Forward, output: Any) -> None:
        for tamper in self.tampers:
            tamper.after_verify(watch, forward, output)

    def after_draft(self, watch: Watch, cache: Any) -> None:
        for tamper in self.tampers:
            tamper.after_draft(watch, cache)

    def around_draft(self, watch: Watch, call: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        for tamper in reversed(self.tampers):
            call = _nested(tamper, watch, call)
        return call(given)


def _nested(tamper: Tamper, watch: Watch, call: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda given: tamper.around_draft(watch, call, dict(given))
