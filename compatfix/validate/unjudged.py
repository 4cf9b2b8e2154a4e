"""Generation code of a tree that no judged entry point leads to, whether or not it looks like an entry point.

Read from the source, so that modules count that nothing imports. What a judged entry point leads to is found by the
names in its code: functions and variables of its module and of modules that it imports, classes that it names, and
methods of those by their names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from compatfix.validate.roles import BY_NAME
from compatfix.validate.tree_source import DRAFTS, SourceFile

# Beyond the published spellings: nothing is called by these, it is only asked whether something generates.
LIKE = {
    role: {*BY_NAME[role].spellings, *more}
    for role, more in (
        ("draft", ("drafter_model", "small", "small_model", "assistant", "assistant_model", "speculator", "dflash")),
        ("target", ("base", "verifier", "verifier_model", "big", "big_model", "large_model", "llm")),
        ("input_ids", ("ids", "prompt", "prompts", "tokens", "input_tokens", "prompt_tokens", "inputs")),
    )
}
# Code that trains takes the same two models and ids.
TRAINS = {"labels", "optimizer", "loss_mask", "loss_fn", "scheduler"}
DECODES = {"logits", "generate"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Definition:
    """A function, a method, or whatever else stands under a name in a module. `owner` is the class of a method."""

    module: str
    name: str
    node: ast.AST
    owner: Owner | None = None

    @property
    def place(self) -> str:
        if self.owner is None:
            return f"{self.module}.{self.name}"
        return f"{self.module}.{self.owner.node.name}" + (f".{self.name}" if self.name != "__call__" else "")

    @cached_property
    def names(self) -> set[str]:
        return {node.id for node in self._code() if isinstance(node, ast.Name)}

    @cached_property
    def attributes(self) -> set[str]:
        return {node.attr for node in self._code() if isinstance(node, ast.Attribute)}

    def _code(self) -> Iterator[ast.AST]:
        """Without annotations: a type that is named is not used."""
        parts: list[ast.AST] = [self.node]
        if isinstance(self.node, Function):
            defaults = [*self.node.args.defaults, *(d for d in self.node.args.kw_defaults if d is not None)]
            parts = [*self.node.body, *self.node.decorator_list, *defaults]
        for part in parts:
            yield from ast.walk(part)


@dataclass(eq=False)
class Owner:
    module: str
    node: ast.ClassDef
    methods: dict[str, Definition] = field(default_factory=dict)

    @cached_property
    def is_draft(self) -> bool:
        forward = self.methods.get("forward")
        return forward is not None and _parameters(forward.node) >= DRAFTS

    @cached_property
    def held(self) -> set[str]:
        """What an instance is made of: parameters of its constructor, fields of a dataclass."""
        made = self.methods.get("__init__")
        fields = [
            s.target.id for s in self.node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        return {*(_parameters(made.node) if made else ()), *fields}


def unjudged(
    files: Sequence[SourceFile], judged: Iterable[tuple[str, str]], named: Iterable[tuple[str, str]]
) -> list[str]:
    """Code that generates, or could, and that neither `judged` entry points nor those in `named` lead to.

    Entry points are (module, qualified name). Code that other such code leads to is not told beside it.
    """
    tree = _Tree(files)
    entries = {found for entry in judged if (found := tree.find(*entry)) is not None}
    judged_code = tree.reached(entries)
    known = judged_code | tree.reached(tree.find(*entry) for entry in named)
    candidates = [d for d in tree.definitions if d not in known and tree.generates(d, entries, judged_code)]
    ways = {candidate: tree.reached([candidate]) for candidate in candidates}
    roots = [c for c in candidates if not any(c in way for other, way in ways.items() if other is not c)]
    told: list[Definition] = []
    for candidate in [*roots, *candidates]:
        if not any(candidate in ways[other] for other in told):
            told.append(candidate)
    return list(dict.fromkeys(definition.place for definition in told))


class _Tree:
    """Definitions by module and name, and the way from one to another."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.definitions: list[Definition] = []
        self._by_name: dict[str, dict[str, Definition | Owner]] = {}
        self._imports: dict[str, dict[str, tuple[str, str | None]]] = {}
        self._stars: dict[str, list[str]] = {}
        for file in files:
            self._read(file)

    def find(self, module: str, name: str) -> Definition | None:
        first, _, last = name.partition(".")
        found = self._resolve(module, first)
        if isinstance(found, Owner):
            return found.methods.get(last or "__call__")
        return found

    def reached(self, roots: Iterable[Definition | None]) -> set[Definition]:
        """The roots and all that they lead to."""
        found: set[Definition] = set()
        classes = {owner for owner in self._owners() if owner.is_draft}
        attributes: set[str] = set()
        fresh = [root for root in roots if root is not None]
        while fresh:
            found |= set(fresh)
            attributes |= {attribute for d in fresh for attribute in d.attributes}
            ahead: set[Definition] = set()
            for definition in fresh:
                if definition.owner is not None:
                    classes |= self._with_bases(definition.owner)
                for target in self._uses(definition):
                    if isinstance(target, Owner):
                        classes |= self._with_bases(target)
                    else:
                        ahead.add(target)
            for owner in classes:
                # A draft is called by its forward; it is no sign that its other methods are.
                ahead |= {
                    method
                    for name, method in owner.methods.items()
                    if name in attributes or (name.startswith("__") and not owner.is_draft) or name == "forward"
                }
            fresh = list(ahead - found)
        return found

    def generates(self, definition: Definition, entries: set[Definition], judged: set[Definition]) -> bool:
        """Two models and ids among the parameters, or **kwargs in the place of ids where logits are read.

        Code that only passes them on to a judged entry point generates nothing of its own.
        """
        if not isinstance(definition.node, Function) or definition.name == "__init__":
            return False
        own = _parameters(definition.node)
        if TRAINS & own or (definition.name == "forward" and not own & set(BY_NAME["max_new_tokens"].spellings)):
            return False
        owner = definition.owner
        models = own if owner is None else own | owner.held
        drafts = {"self"} if owner is not None and owner.is_draft else models & LIKE["draft"]
        if not any(draft != target for draft in drafts for target in models & LIKE["target"]):
            return False
        way = self.reached([definition])
        decodes = any(DECODES & part.attributes for part in way - judged)
        if own & LIKE["input_ids"]:
            return decodes or not way & entries
        return decodes and (definition.node.args.kwarg is not None or definition.node.args.vararg is not None)

    def _owners(self) -> list[Owner]:
        return [found for names in self._by_name.values() for found in names.values() if isinstance(found, Owner)]

    def _with_bases(self, owner: Owner) -> set[Owner]:
        found, fresh = {owner}, [owner]
        while fresh:
            one = fresh.pop()
            names = [base.id for base in one.node.bases if isinstance(base, ast.Name)]
            bases = [base for name in names if isinstance(base := self._resolve(one.module, name), Owner)]
            fresh += [base for base in bases if base not in found]
            found |= set(bases)
        return found

    def _uses(self, definition: Definition) -> Iterator[Definition | Owner]:
        for name in definition.names:
            found = self._resolve(definition.module, name)
            if found is not None:
                yield found
            elif name in self._imports[definition.module]:
                # `import fast; fast.generate(…)`, or a module taken from its package.
                inner = ".".join(filter(None, self._imports[definition.module][name]))
                things = (self._resolve(inner, attribute) for attribute in definition.attributes)
                yield from (thing for thing in things if thing is not None)

    def _resolve(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> Definition | Owner | None:
        if module not in self._by_name or module in seen:
            return None
        if name in self._by_name[module]:
            return self._by_name[module][name]
        seen = seen | {module}
        source, inside = self._imports[module].get(name, ("", None))
        if inside is not None:
            return self._resolve(source, inside, seen)
        return next((found for star in self._stars[module] if (found := self._resolve(star, name, seen))), None)

    def _read(self, file: SourceFile) -> None:
        names: dict[str, Definition | Owner] = {}
        imports: dict[str, tuple[str, str | None]] = {}
        stars: list[str] = []
        package = file.module if file.path.name == "__init__.py" else file.module.rpartition(".")[0]
        for node in ast.walk(file.syntax):
            if isinstance(node, ast.Import):
                imports |= {alias.asname or alias.name.partition(".")[0]: (alias.name, None) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = _absolute(node, package)
                imports |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
                stars += [source for alias in node.names if alias.name == "*"]
        for node in file.syntax.body:
            if isinstance(node, Function):
                names[node.name] = Definition(file.module, node.name, node)
            elif isinstance(node, ast.ClassDef):
                owner = names[node.name] = Owner(file.module, node)
                for inner in node.body:
                    if isinstance(inner, Function):
                        owner.methods[inner.name] = Definition(file.module, inner.name, inner, owner)
                self.definitions += owner.methods.values()
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                held = Definition(file.module, "", node.value)
                names |= {part.id: held for t in targets for part in ast.walk(t) if isinstance(part, ast.Name)}
        self.definitions += [d for d in names.values() if isinstance(d, Definition)]
        self._by_name[file.module], self._imports[file.module], self._stars[file.module] = names, imports, stars


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join(filter(None, [*parts, node.module]))


def _parameters(node: ast.AST) -> set[str]:
    if not isinstance(node, Function):
        return set()
    return {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)} - {"self"}
