"""The entry points of an imported tree: found by signature, or named by the user, and how each is to be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from compatfix.validate.roles import (
    LEAST,
    ArgumentChoice,
    CallMap,
    Choices,
    EntryChoice,
    Kind,
    ResultChoice,
    advice,
    closest,
    generates,
    map_parameters,
)

ANYWHERE = ResultChoice()


class TreeError(Exception):
    """The tree cannot be used. `code` is a code of the registry, `detail` JSON about where."""

    def __init__(self, code: str, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class Entry:
    """A generation function, how it is called, and where its result holds the ids.

    A `method` is the draft's: it is called on the draft in hand.
    """

    name: str
    module: str
    function: Callable[..., Any]
    call: CallMap
    method: bool = False
    named: bool = False
    result: ResultChoice = ANYWHERE

    @property
    def budget(self) -> str | None:
        return self.call.roles.get("tree_budget")

    @property
    def place(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def signature(self) -> inspect.Signature:
        """Without self, for a method."""
        return _signature(self.function, self.method)


@dataclass(frozen=True)
class Chosen:
    chain: Entry | None
    tree: Entry | None
    loop: Entry | None


def check_modules(choices: Choices, known: Sequence[str]) -> None:
    """Raises TreeError where --entry names a module that the tree has not."""
    for entry in choices.entries:
        if entry.module not in known:
            near = closest(entry.module, known)
            raise TreeError("CF907", f"--entry {entry}: no module {entry.module} in the tree; {near}")


def find_entries(modules: Sequence[ModuleType], choices: Choices) -> list[Entry]:
    """Functions in a published shape."""
    found = []
    for module in modules:
        for name, value in vars(module).items():
            if not callable(value) or inspect.isclass(value) or getattr(value, "__module__", None) != module.__name__:
                continue
            entry = _made(name, module.__name__, value, choices)
            if entry is not None and generates(list(entry.signature.parameters)) and entry.call.roles.keys() >= LEAST:
                found.append(entry)
    return found


def choose(
    entries: Sequence[Entry], modules: Sequence[ModuleType], draft_class: type | None, choices: Choices
) -> Chosen:
    """What will be run: what the user named, then what was found. Raises TreeError for what cannot be called."""
    named: dict[Kind, Entry] = {}
    for choice in choices.entries:
        entry = _resolve(choice, modules, draft_class, choices)
        kind: Kind = choice.kind or ("tree" if entry.budget is not None else "chain")
        if kind in named:
            raise TreeError("CF907", f"--entry {choice}: {named[kind].place} is the {kind} already")
        if kind == "tree" and entry.budget is None:
            tip = advice(f"tree={choice}", (), ("tree_budget",))
            raise TreeError("CF907", f"{choice} has no parameter for the tree budget; say which one it is: {tip}")
        if kind == "loop" and not entry.method:
            raise TreeError("CF907", f"--entry loop={choice}: the loop is a method of the draft class")
        named[kind] = entry
    methods = list(own_methods(draft_class, choices))
    pool = [*entries] or [m for m in methods if generates(list(m.signature.parameters))]
    chain = named.get("chain") or next((entry for entry in pool if entry.budget is None), None)
    tree = named.get("tree") or next((entry for entry in pool if entry.budget is not None), None)
    taken = [entry.function for entry in (chain, tree) if entry is not None]
    loop = named.get("loop") or next((method for method in methods if method.function not in taken), None)
    run = [entry for entry in (chain, tree, loop) if entry is not None]
    for entry in run:
        _check_call(entry)
    _check_arguments(choices, run)
    _check_results(choices, run)
    return Chosen(chain, tree, loop)


def own_methods(draft_class: type | None, choices: Choices) -> Iterator[Entry]:
    """Methods of the draft class that take a target, a prompt and a limit."""
    for name, value in vars(draft_class).items() if draft_class is not None else ():
        if inspect.isfunction(value) and draft_class is not None:
            entry = _made(f"{draft_class.__name__}.{name}", draft_class.__module__, value, choices, method=True)
            if entry is not None and entry.call.roles.keys() >= LEAST - {"draft"}:
                yield entry


def unrun(entries: Sequence[Entry], chosen: Sequence[Entry]) -> tuple[str, ...]:
    """Entry points that are neither run themselves nor named in the code of one that is."""
    run = list(chosen)
    for entry in run:
        code = getattr(inspect.unwrap(entry.function), "__code__", None)
        names = code.co_names if code else ()
        run += [other for other in entries if other.name in names and other not in run]
    functions = [entry.function for entry in run]
    return tuple(f"{entry.module}.{entry.name}" for entry in entries if entry.function not in functions)


def parameter_names(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _made(name: str, module: str, function: Any, choices: Choices, *, method: bool = False) -> Entry | None:
    try:
        signature = _signature(function, method)
    except (TypeError, ValueError):
        return None
    said = [choice for choice in choices.arguments if choice.entry in (None, f"{module}:{name}")]
    # What was said of this one function goes before what was said of all.
    said.sort(key=lambda choice: choice.entry is not None)
    call = map_parameters(signature, said, without=("draft",) if method else ())
    return Entry(name, module, function, call, method, result=choices.result_of(f"{module}:{name}"))


def _signature(function: Any, method: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:]) if method else signature


def _resolve(choice: EntryChoice, modules: Sequence[ModuleType], draft_class: type | None, choices: Choices) -> Entry:
    """The function that --entry names. Raises TreeError, which says what there is."""
    owner: Any = next(module for module in modules if module.__name__ == choice.module)
    *classes, last = choice.function.split(".")
    for part in classes:
        owner = _member(choice, owner, part)
    function = _member(choice, owner, last)
    if inspect.isclass(function) or not callable(function):
        raise TreeError("CF907", f"--entry {choice}: {choice.function} is no function")
    method = inspect.isclass(owner) and inspect.isfunction(vars(owner).get(last, function))
    if method and (draft_class is None or not issubclass(draft_class, owner)):
        what = f"{owner.__name__} is not its class"
        raise TreeError("CF907", f"--entry {choice}: a method can be called on the draft only; {what}")
    entry = _made(choice.function, choice.module, function, choices, method=method)
    if entry is None:
        raise TreeError("CF907", f"--entry {choice}: Python cannot tell its parameters")
    lacking = LEAST - entry.call.roles.keys() - ({"draft"} if method else set())
    if lacking:
        rest = [n for n in entry.signature.parameters if n not in (*entry.call.roles.values(), *entry.call.literals)]
        unknown = [name for name in rest if name in entry.call.missing] or rest
        tip = advice(str(choice), unknown, lacking)
        has = ", ".join(rest) or "no others"
        what = ", ".join(sorted(lacking))
        raise TreeError("CF907", f"{choice} has no known parameter for {what} (others: {has}); say which: {tip}")
    return replace(entry, named=True)


def _member(choice: EntryChoice, owner: Any, name: str) -> Any:
    if not hasattr(owner, name):
        known = [n for n, value in vars(owner).items() if callable(value) and not n.startswith("__")]
        raise TreeError("CF907", f"--entry {choice}: {owner.__name__} has no {name}; {closest(name, known)}")
    return getattr(owner, name)


def _check_call(entry: Entry) -> None:
    if entry.call.missing:
        what = ", ".join(entry.call.missing)
        tip = advice(entry.place, entry.call.missing)
        raise TreeError("CF907", f"{entry.place} needs {what}, which no role covers; say what to pass: {tip}")


def _check_arguments(choices: Choices, run: Sequence[Entry]) -> None:
    """What was said of a parameter that no entry point has would silently do nothing."""
    for said in choices.arguments:
        if not any(_concerns(said, entry) and said.name in entry.call.said for entry in run):
            names = [name for entry in run if said.entry in (None, entry.place) for name in entry.signature.parameters]
            what = f"no parameter {said.name} in {said.entry or 'the entry points'}"
            raise TreeError("CF907", f"--argument {said.name}: {what}; {closest(said.name, names)}")


def _check_results(choices: Choices, run: Sequence[Entry]) -> None:
    places = [entry.place for entry in run]
    for said in choices.results:
        if said.entry not in (None, *places):
            what = f"{said.entry} is no entry point that is run"
            raise TreeError("CF907", f"--result {said}: {what}; {closest(str(said.entry), places)}")


def _concerns(said: ArgumentChoice, entry: Entry) -> bool:
    return said.entry in (None, entry.place)
