"""The questions that rules ask about a file: what is a cache, whose, what is the target, where may it be named."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compatfix.rewrites.flow.evaluate import RUNTIME
from compatfix.rewrites.flow.objects import CallSite, Module, Obj, Scope
from compatfix.rewrites.flow.scopes import SCOPED, owner_of
from compatfix.rewrites.roles import Roles


class Code:
    """One file of the tree, with the roles of everything in it."""

    def __init__(self, module: Module, roles: Roles, selected: frozenset[str] = frozenset()) -> None:
        self.module = module
        self.selected = selected
        self.roles = roles
        self.flow = roles.flow
        self._scopes = self.flow.project.scopes(module)
        self._parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(module.tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node

    # -- what a value is

    def values(self, node: ast.AST) -> set[Obj]:
        return self.flow.values_of(node)

    def qualified(self, node: ast.expr) -> set[str]:
        """The dotted names, whatever they are called here, of the imported things that an expression may be."""
        return {value.name for value in self.values(node) if value.kind == "import"}

    def is_cache(self, node: ast.expr) -> bool:
        return bool(self.values(node) & self.roles.caches)

    def is_target_cache(self, node: ast.expr) -> bool:
        return bool(self.values(node) & self.roles.target_caches)

    def is_verified(self, cache: ast.expr) -> bool:
        """Whether the forwards on this cache go through the runtime's `verify`, now or after the selected rules."""
        if "CF202" in self.selected:
            return True
        values = self.values(cache)
        sites = [s for s in self.roles.target_calls.values() if self.roles.caches_of(s) & values]
        return bool(sites) and all(f"{RUNTIME}.verify" in {c.name for c in s.callees} for s in sites)

    def is_target(self, node: ast.expr) -> bool:
        return bool(self.values(node) & self.roles.targets)

    def is_draft(self, node: ast.expr) -> bool:
        return bool(self.values(node) & self.roles.drafts)

    def from_draft(self, node: ast.expr) -> bool:
        """Whether an expression is computed from the output of a draft."""
        return self.roles.derived(self.values(node), self.roles.draft_results)

    def is_own(self, owner: Obj, attribute: str) -> bool:
        """Whether an object of a class of the tree got this attribute from the tree, whose author may name it."""
        return owner.kind == "instance" and bool(self.flow.fields.known(owner, attribute))

    def feeds_draft(self, value: Obj) -> bool:
        """Whether a value, or something computed from it, is an argument of a draft."""
        for site in self.flow.calls.values():
            if site.result in self.roles.draft_results:
                for argument in site.arguments():
                    if self.roles.derived(argument, {value}):
                        return True
        return False

    def site(self, node: ast.Call) -> CallSite | None:
        return self.flow.calls.get(node)

    # -- where a node stands

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        here = self._parents.get(node)
        while here is not None:
            yield here
            here = self._parents.get(here)

    def scope(self, node: ast.AST) -> Scope:
        inner = node
        for outer in self.around(node):
            if isinstance(outer, ast.Module):
                return self.module.scope
            if isinstance(outer, SCOPED) and (isinstance(outer, ast.Lambda) or inner in outer.body):
                return self._scopes[outer]
            inner = outer
        return self.module.scope

    def statement(self, node: ast.AST) -> ast.stmt:
        here: ast.AST = node
        while not isinstance(here, ast.stmt):
            here = self._parents[here]
        return here

    def is_loaded(self, node: ast.expr) -> bool:
        return isinstance(getattr(node, "ctx", None), ast.Load)

    # -- how to name a thing here

    def name_of_target(self, cache: set[Obj], place: ast.AST) -> str | None:
        """Source for the target called with this cache, as it may be written at `place`; None: none is in reach."""
        scope = self.scope(place)
        targets: set[Obj] = set()
        for node, site in self.roles.target_calls.items():
            if not self.roles.caches_of(site) & cache:
                continue
            targets |= self.roles.models_of(site) & self.roles.targets
            callee = self.callee(node)
            if self.scope_module(site.scope) and self._reaches(site.scope, scope) and is_path(callee):
                root = root_name(callee)
                if self._defined_before(root, scope, place):
                    return ast.unparse(callee)
        return self.name_of(targets, place)

    def name_of(self, wanted: set[Obj], place: ast.AST) -> str | None:
        """A name, or an attribute of self, that holds one of these values and is defined before `place`."""
        here: Scope | None = self.scope(place)
        while here is not None:
            for name, values in here.values.items():
                if values & wanted and not values & self.roles.drafts and self._defined_before(name, here, place):
                    return name
            for parameter in here.parameters[:1]:
                for owner in here.names(parameter.arg):
                    if owner.kind == "instance":
                        for attribute in sorted(self.flow.fields.names(owner)):
                            known = self.flow.fields.known(owner, attribute)
                            if known & wanted and not known & self.roles.drafts:
                                return f"{parameter.arg}.{attribute}"
            here = here.parent
        # A name that nothing in the file binds is somebody else's global, in reach everywhere.
        own = self.module.scope
        strangers = {v.name for v in wanted if v.kind == "opaque" and v.scope is own and v.name not in own.bound}
        return min(strangers, default=None)

    def callee(self, node: ast.Call) -> ast.expr:
        """What a call runs: the receiver of `.forward`, the first argument of `verify`, or the function."""
        if f"{RUNTIME}.verify" in self.qualified(node.func) and node.args:
            return node.args[0]
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("forward", "__call__"):
            return node.func.value
        return node.func

    def scope_module(self, scope: Scope) -> bool:
        return scope.module is self.module

    def _reaches(self, inner: Scope, outer: Scope) -> bool:
        here: Scope | None = outer
        while here is not None:
            if here is inner:
                return True
            here = here.parent
        return False

    def _defined_before(self, name: str, scope: Scope, place: ast.AST) -> bool:
        owner = owner_of(scope, name)
        if owner is None:
            return True
        if name in {argument.arg for argument in owner.parameters}:
            return True
        if owner is not self.scope(place):
            return True
        line = getattr(place, "lineno", 0)
        return any(
            (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name and node.lineno < line)
            or (isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno < line and _imports(node, name))
            for node in ast.walk(owner.node)
        )


def _imports(node: ast.Import | ast.ImportFrom, name: str) -> bool:
    return any((alias.asname or alias.name.split(".")[0]) == name for alias in node.names)


def is_path(node: ast.expr) -> bool:
    """A name, or attributes of a name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
