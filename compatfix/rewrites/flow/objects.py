"""The abstract values of the analysis: where a value came from, which is all that a rule may ask about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

# Attribute chains and subscripts are followed this far; loops such as `x = x[1]` would grow without end.
_DEEPEST = 6


@dataclass(eq=False)
class Obj:
    """One value, known by its origin.

    `kind` is one of: import (`name` is the qualified name), module, function, class, instance, method, opaque (a
    parameter or an undefined name), call (the result of a call), field (an attribute or item of `parent`), const,
    dict, sequence. `scope` is the body of a module, function or class; `owner` the instance that a method is bound to.
    """

    kind: str
    name: str = ""
    node: ast.AST | None = None
    parent: Obj | None = None
    scope: Scope | None = None
    owner: Obj | None = None
    depth: int = 0
    annotations: set[str] = field(default_factory=set)

    def chain(self) -> Iterator[Obj]:
        """This value and those it is a part of: `a.b[0]`, `a.b`, `a`."""
        here: Obj | None = self
        while here is not None:
            yield here
            here = here.parent

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>" if self.parent is None else f"{self.parent!r}.{self.name}"


@dataclass(eq=False)
class Scope:
    """A module, class or function body: the names it binds and the values that reach them."""

    kind: str
    node: ast.AST
    module: Module
    parent: Scope | None = None
    bound: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    values: dict[str, set[Obj]] = field(default_factory=dict)
    returns: set[Obj] = field(default_factory=set)
    definitions: dict[str, list[ast.expr]] = field(default_factory=dict)

    def names(self, name: str) -> set[Obj]:
        return self.values.setdefault(name, set())

    @property
    def parameters(self) -> list[ast.arg]:
        arguments = getattr(self.node, "args", None)
        if not isinstance(arguments, ast.arguments):
            return []
        return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]

    def method(self, name: str) -> Obj | None:
        """A function that this class body defines."""
        return next((obj for obj in self.values.get(name, ()) if obj.kind == "function"), None)


@dataclass(eq=False)
class Module:
    """One parsed file. `package` is the dotted path that relative imports start from."""

    path: str
    tree: ast.Module
    dotted: str
    is_package: bool
    scope: Scope = field(init=False)
    stars: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scope = Scope("module", self.tree, self)

    @property
    def package(self) -> str:
        return self.dotted if self.is_package else self.dotted.rpartition(".")[0]


@dataclass(eq=False)
class CallSite:
    """A call with what may reach its callee and its arguments."""

    node: ast.Call
    scope: Scope
    result: Obj
    callees: set[Obj] = field(default_factory=set)
    positional: list[set[Obj]] = field(default_factory=list)
    keywords: dict[str, set[Obj]] = field(default_factory=dict)

    def arguments(self) -> Iterator[set[Obj]]:
        yield from self.positional
        yield from self.keywords.values()


class Fields:
    """The parts of values: one object for each attribute or item of each value, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[Obj, str], Obj] = {}
        self._stored: dict[tuple[Obj, str], set[Obj]] = {}
        self._by_owner: dict[Obj, set[str]] = {}

    def stored(self, owner: Obj, name: str) -> set[Obj]:
        self._by_owner.setdefault(owner, set()).add(name)
        return self._stored.setdefault((owner, name), set())

    def names(self, owner: Obj) -> set[str]:
        return self._by_owner.get(owner, set())

    def known(self, owner: Obj, name: str) -> set[Obj]:
        return self._stored.get((owner, name), set())

    def part(self, owner: Obj, name: str) -> Obj:
        if owner.depth >= _DEEPEST or (owner.kind == "field" and owner.name == name and name[0] in "[~"):
            return owner
        key = (owner, name)
        if key not in self._made:
            self._made[key] = Obj("field", name, parent=owner, depth=owner.depth + 1)
        return self._made[key]
