"""Evaluates every expression of the tree to the values that may reach it, again and again until nothing is new."""

from __future__ import annotations

import ast

from compatfix.rewrites.flow.binding import items_of
from compatfix.rewrites.flow.calls import arguments_of, result_of
from compatfix.rewrites.flow.objects import CallSite, Fields, Obj, Scope
from compatfix.rewrites.flow.project import Project
from compatfix.rewrites.flow.scopes import SCOPED, nodes_of, owner_of

_ROUNDS = 25
RUNTIME = "compatfix_runtime"
_PASSIVE = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop, ast.arguments, ast.keyword, ast.alias)
_PROXIES = {"compatfix_runtime.verify", "compatfix_runtime.draft_forward"}


class Flow:
    """The analysis of a project. After `run`, `values_of(node)` answers for every expression of every module."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.fields = Fields()
        self.calls: dict[ast.Call, CallSite] = {}
        self._values: dict[ast.AST, set[Obj]] = {}
        self._singletons: dict[tuple[object, ...], Obj] = {}
        self._grown = False
        self._round = 0
        self._evaluated: dict[ast.AST, int] = {}
        self._nodes: dict[Scope, list[ast.AST]] = {}

    def run(self) -> None:
        for self._round in range(1, _ROUNDS):
            self._grown = False
            for module in self.project.modules():
                for scope in self.project.scopes(module).values():
                    self._scope(scope)
            if not self._grown:
                return

    def values_of(self, node: ast.AST) -> set[Obj]:
        return self._values.get(node, set())

    def single(self, kind: str, *key: object, **fields: object) -> Obj:
        """The one object of this kind for this key."""
        whole = (kind, *key)
        if whole not in self._singletons:
            self._singletons[whole] = Obj(kind, **fields)  # type: ignore[arg-type]
        return self._singletons[whole]

    def add(self, known: set[Obj], new: set[Obj]) -> None:
        if not new <= known:
            known |= new
            self._grown = True

    # -- statements

    def _scope(self, scope: Scope) -> None:
        if scope.kind == "function":
            self._parameters(scope)
        if isinstance(scope.node, ast.Lambda):
            self.add(scope.returns, self.evaluate(scope.node.body, scope))
        if scope not in self._nodes:
            self._nodes[scope] = _roots(scope)
        for node in self._nodes[scope]:
            self._statement(node, scope)

    def _parameters(self, scope: Scope) -> None:
        parameters = scope.parameters
        outer = scope.parent
        has_self = outer is not None and outer.kind == "class" and bool(parameters) and not _is_static(scope.node)
        if outer is not None and has_self:
            self.add(scope.names(parameters[0].arg), {self.instance(outer)})
        for argument in parameters[has_self:]:
            own = self.single("opaque", scope, argument.arg, name=argument.arg, node=argument, scope=scope)
            self.add(scope.names(argument.arg), {own})
            if argument.annotation is not None:
                self._annotation(argument.annotation, own, scope)
        arguments = scope.node.args  # type: ignore[attr-defined]
        for extra, kind in ((arguments.vararg, "sequence"), (arguments.kwarg, "dict")):
            if extra is not None:
                self.add(scope.names(extra.arg), {self.single(kind, scope, extra.arg, name=extra.arg)})

    def _annotation(self, annotation: ast.expr, own: Obj, scope: Scope) -> None:
        for node in ast.walk(annotation):
            if isinstance(node, (ast.Name, ast.Attribute)):
                for value in self.evaluate(node, scope):
                    if value.kind == "import":
                        own.annotations.add(value.name)
                    elif value.kind == "class" and value.scope is not None:
                        self.add(scope.names(own.name), {self.instance(value.scope)})

    def instance(self, body: Scope) -> Obj:
        return self.single("instance", body, name=getattr(body.node, "name", ""), scope=body)

    def _statement(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                inner = self.project.scopes(scope.module)[node]
                self.add(scope.names(node.name), {self.single(kind, inner, name=node.name, node=node, scope=inner)})
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign_expression(target, value, scope)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign_expression(target, value, scope)
            case ast.AugAssign(target=target, value=value):
                self._define(target, value, scope)
            case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
                self._assign(target, self._items(self.evaluate(source, scope)), scope)
            case ast.comprehension(target=target, iter=source):
                self._assign(target, self._items(self.evaluate(source, scope)), scope)
            case ast.withitem(context_expr=source, optional_vars=target) if target is not None:
                self._assign(target, self.evaluate(source, scope), scope)
            case ast.Return(value=value) if value is not None:
                self.add(scope.returns, self.evaluate(value, scope))
            case ast.expr():
                self.evaluate(node, scope)

    def _define(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        """Remembers which expressions a name stands for, for rules that ask how a number was computed."""
        if isinstance(target, ast.Name):
            owner = owner_of(scope, target.id) or scope
            known = owner.definitions.setdefault(target.id, [])
            if not any(value is other for other in known):
                known.append(value)

    def _assign_expression(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if (
            isinstance(target, (ast.Tuple, ast.List))
            and isinstance(value, (ast.Tuple, ast.List))
            and len(target.elts) == len(value.elts)
            and not any(isinstance(e, ast.Starred) for e in (*target.elts, *value.elts))
        ):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign_expression(one, other, scope)
            self.evaluate(value, scope)
            return
        self._define(target, value, scope)
        self._assign(target, self.evaluate(value, scope), scope)

    def _assign(self, target: ast.expr, values: set[Obj], scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                owner = owner_of(scope, name) or scope
                self.add(owner.names(name), values)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for place, part in enumerate(parts):
                    if isinstance(part, ast.Starred):
                        self._assign(part.value, self._items(values), scope)
                        continue
                    self._assign(part, self._part(values, f"[{place}]"), scope)
            case ast.Attribute(value=base, attr=name):
                for owner_object in self.evaluate(base, scope):
                    self.add(self.fields.stored(owner_object, name), values)
            case ast.Subscript(value=base, slice=index):
                for owner_object in self.evaluate(base, scope):
                    if owner_object.kind in ("dict", "sequence"):
                        self.add(self.fields.stored(owner_object, item_name(index)), values)
                self.evaluate(index, scope)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                dotted = alias.name if alias.asname else alias.name.split(".")[0]
                self._bind_import(alias.asname or dotted, self.imported(dotted, scope), scope)
            return
        base = self.project.absolute(node, scope.module)
        for alias in node.names:
            if alias.name == "*":
                if base not in scope.module.stars:
                    scope.module.stars.append(base)
                continue
            values = self.member(self.imported(base, scope), base, alias.name, scope)
            self._bind_import(alias.asname or alias.name, values, scope)

    def _bind_import(self, name: str, values: set[Obj], scope: Scope) -> None:
        owner = owner_of(scope, name) or scope
        self.add(owner.names(name), values)

    def imported(self, dotted: str, scope: Scope) -> set[Obj]:
        module = self.project.find(dotted, scope.module)
        if module is not None:
            return {self.single("module", module, name=module.dotted, scope=module.scope)}
        return {self.single("import", dotted, name=dotted)}

    def member(self, modules: set[Obj], base: str, name: str, scope: Scope) -> set[Obj]:
        submodule = self.project.find(f"{base}.{name}", scope.module)
        if submodule is not None and not any(m.scope and name in m.scope.bound for m in modules):
            return {self.single("module", submodule, name=submodule.dotted, scope=submodule.scope)}
        return {value for module in modules for value in self.attribute(module, name)}

    # -- expressions

    def evaluate(self, node: ast.expr, scope: Scope) -> set[Obj]:
        known = self._values.setdefault(node, set())
        if self._evaluated.get(node) == self._round:
            return known
        self._evaluated[node] = self._round
        values = self._fresh(node, scope)
        self.add(known, values)
        return known

    def _fresh(self, node: ast.expr, scope: Scope) -> set[Obj]:
        match node:
            case ast.Name(id=name):
                return self._name(name, scope)
            case ast.Attribute(value=base, attr=name):
                return {value for owner in self.evaluate(base, scope) for value in self.attribute(owner, name)}
            case ast.Subscript(value=base, slice=index):
                self.evaluate(index, scope)
                return self._part(self.evaluate(base, scope), item_name(index))
            case ast.Call():
                return self._call(node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.evaluate(test, scope)
                return self.evaluate(body, scope) | self.evaluate(orelse, scope)
            case ast.BoolOp(values=parts):
                return {value for part in parts for value in self.evaluate(part, scope)}
            case ast.NamedExpr(target=target, value=value):
                self._assign_expression(target, value, scope)
                return self.evaluate(value, scope)
            case ast.Starred(value=value) | ast.Await(value=value):
                return self.evaluate(value, scope)
            case ast.BinOp(left=left, right=right):
                operands = self.evaluate(left, scope) | self.evaluate(right, scope)
                return {self.fields.part(o, "~") for o in operands if o.kind in ("call", "field")}
            case ast.Constant(value=str()):
                return {self.single("const", node, name=node.value, node=node)}
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                made = self.single("sequence", node, node=node)
                for place, part in enumerate(parts):
                    self.add(self.fields.stored(made, f"[{place}]"), self.evaluate(part, scope))
                return {made}
            case ast.Dict(keys=keys, values=parts):
                made = self.single("dict", node, node=node)
                for key, part in zip(keys, parts, strict=True):
                    values = self.evaluate(part, scope)
                    if key is None:
                        self._merge(made, values)
                    else:
                        self.add(self.fields.stored(made, item_name(key)), values)
                return {made}
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                made = self.single("sequence", node, node=node)
                for generator in node.generators:
                    self._statement(generator, scope)
                self.add(self.fields.stored(made, "[*]"), self.evaluate(element, scope))
                return {made}
            case ast.Lambda():
                inner = self.project.scopes(scope.module)[node]
                return {self.single("function", inner, name="<lambda>", node=node, scope=inner)}
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr) and not isinstance(child, SCOPED):
                        self.evaluate(child, scope)
                return set()

    def _name(self, name: str, scope: Scope) -> set[Obj]:
        owner = owner_of(scope, name)
        if owner is not None:
            return owner.names(name)
        for base in scope.module.stars:
            found = self.member(self.imported(base, scope), base, name, scope)
            if base.split(".")[0] == "transformers" or any(v.kind != "import" for v in found):
                return found
        return {self.single("opaque", scope.module, name, name=name, scope=scope.module.scope)}

    def attribute(self, owner: Obj, name: str) -> set[Obj]:
        if owner.kind == "import":
            dotted = f"{owner.name}.{name}"
            if owner.name.split(".")[-1] == RUNTIME:
                dotted = f"{RUNTIME}.{name}"
            return {self.single("import", dotted, name=dotted)}
        if owner.kind == "module" and owner.scope is not None:
            if name in owner.scope.bound:
                return owner.scope.names(name)
            submodule = self.project.find(f"{owner.name}.{name}", owner.scope.module)
            if submodule is not None:
                return {self.single("module", submodule, name=submodule.dotted, scope=submodule.scope)}
        if owner.kind in ("instance", "class") and owner.scope is not None:
            inherited = self.inherited(owner, name, owner.scope, 0)
            if inherited:
                return inherited | self.fields.known(owner, name)
        return {self.fields.part(owner, name)} | self.fields.known(owner, name)

    def inherited(self, owner: Obj, name: str, body: Scope, depth: int) -> set[Obj]:
        """What the class body or a base class in the tree defines under this name, bound to `owner`."""
        if name in body.bound:
            found: set[Obj] = set()
            for value in body.names(name):
                if value.kind != "function" or value.scope is None or owner.kind == "class":
                    found.add(value)
                elif _is_property(value.scope.node):
                    found |= value.scope.returns
                else:
                    found.add(self.single("method", value, owner, name=name, scope=value.scope, owner=owner))
            return found
        if depth > 8 or not isinstance(body.node, ast.ClassDef) or body.parent is None:
            return set()
        bases = [v for base in body.node.bases for v in self.evaluate(base, body.parent) if v.kind == "class"]
        return {v for b in bases if b.scope for v in self.inherited(owner, name, b.scope, depth + 1)}

    def _part(self, owners: set[Obj], name: str) -> set[Obj]:
        found: set[Obj] = set()
        for owner in owners:
            if owner.kind in ("dict", "sequence"):
                known = self.fields.known(owner, name) | self.fields.known(owner, "[*]")
                found |= known or (self._items({owner}) if name in ("[*]", "[:]") else set())
            else:
                found.add(self.fields.part(owner, name))
        return found

    def _items(self, owners: set[Obj]) -> set[Obj]:
        return items_of(owners, self.fields)

    def _merge(self, made: Obj, others: set[Obj]) -> None:
        for other in others:
            for name in list(self.fields.names(other)):
                self.add(self.fields.stored(made, name), self.fields.known(other, name))

    # -- calls

    def _call(self, node: ast.Call, scope: Scope) -> set[Obj]:
        callees = set(self.evaluate(node.func, scope))
        site = self.calls.get(node)
        if site is None:
            site = CallSite(node, scope, self.single("call", node, node=node))
            self.calls[node] = site
        site.positional, site.keywords = arguments_of(self, node, scope)
        proxies = {c for c in callees if c.kind == "import" and c.name in _PROXIES}
        if proxies and site.positional:
            callees |= site.positional.pop(0)
        site.callees = callees
        results: set[Obj] = set()
        for callee in list(callees):
            results |= result_of(self, callee, site)
        return results


def _roots(scope: Scope) -> list[ast.AST]:
    """Statements, and the expressions that no other expression evaluates on its way."""
    nodes = [node for node in nodes_of(scope.node) if not isinstance(node, _PASSIVE)]
    inner = {c for node in nodes if isinstance(node, ast.expr) for c in ast.iter_child_nodes(node)}
    return [node for node in nodes if not (isinstance(node, ast.expr) and node in inner)]


def item_name(index: ast.expr) -> str:
    """The name of the item that a subscript reads: exact for constants, `[:]` for slices, `[*]` for the rest."""
    if isinstance(index, ast.Constant):
        return f"[{index.value!r}]"
    if any(isinstance(part, ast.Slice) for part in ast.walk(index)):
        return "[:]"
    return "[*]"


def _is_static(node: ast.AST) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in getattr(node, "decorator_list", ()))


def _is_property(node: ast.AST) -> bool:
    names = {d.id if isinstance(d, ast.Name) else getattr(d, "attr", "") for d in getattr(node, "decorator_list", ())}
    return bool(names & {"property", "cached_property"})
