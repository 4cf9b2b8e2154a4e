"""Which scope binds which name, by Python's own rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compatfix.rewrites.flow.objects import Module, Scope

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def build_scopes(module: Module) -> dict[ast.AST, Scope]:
    """Every scope of a module by its node. Comprehensions share the scope around them: nothing here needs more."""
    scopes: dict[ast.AST, Scope] = {module.tree: module.scope}
    pending = [module.scope]
    while pending:
        scope = pending.pop()
        for node in nodes_of(scope.node):
            _bind(node, scope)
            if isinstance(node, SCOPED):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                inner = Scope(kind, node, module, scope)
                if not isinstance(node, ast.ClassDef):
                    inner.bound.update(parameter_names(node))
                scopes[node] = inner
                pending.append(inner)
    return scopes


def nodes_of(scope_node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run in this scope, in source order, without the bodies of the scopes inside it."""
    if isinstance(scope_node, ast.Lambda):
        roots: list[ast.AST] = [scope_node.body]
    else:
        roots = list(getattr(scope_node, "body", ()))
    pending = list(reversed(roots))
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, SCOPED):
            pending.extend(reversed(_outside(node)))
        else:
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def parameter_names(node: Function) -> Iterator[str]:
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.arg
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            yield extra.arg


def owner_of(scope: Scope, name: str) -> Scope | None:
    """The scope that a name read in `scope` belongs to; None where nobody in the file binds it."""
    here: Scope | None = scope
    while here is not None:
        visible = here is scope or here.kind != "class"
        if visible and name in here.bound and name not in here.elsewhere:
            return here
        here = here.parent
    return None


def _outside(node: ast.AST) -> list[ast.AST]:
    """What of a definition runs in the scope around it: decorators, bases, defaults, annotations."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
    if isinstance(node, ast.Lambda):
        return list(defaults)
    return [*node.decorator_list, *defaults]


def _bind(node: ast.AST, scope: Scope) -> None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        scope.bound.add(node.id)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope.bound.add(node.name)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        scope.bound.update((alias.asname or alias.name.split(".")[0]) for alias in node.names)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        scope.bound.add(node.name)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        scope.elsewhere.update(node.names)
    elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
        scope.bound.add(node.name)
