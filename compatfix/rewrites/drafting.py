"""Where a tree calls its draft, and under which name the draft is in reach of other code."""

from __future__ import annotations

import ast

from compatfix.rewrites.code import Code, is_path, root_name
from compatfix.rewrites.flow.evaluate import RUNTIME
from compatfix.rewrites.flow.objects import Scope
from compatfix.rewrites.flow.scopes import nodes_of, owner_of


def draft_of_call(node: ast.Call, code: Code) -> ast.expr | None:
    """The draft that a call runs the forward of, by a name or a path; None where the call is none of a draft."""
    site = code.site(node)
    if site is None or site.result not in code.roles.draft_results:
        return None
    function = node.func
    if f"{RUNTIME}.draft_forward" in code.qualified(function) and node.args:
        function = node.args[0]
    elif isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
        function = function.value
    return function if is_path(function) and code.is_draft(function) else None


def name_of_draft(place: ast.expr, code: Code) -> str | None:
    """Source for the one draft that the function around `place` calls, where that name has its value at `place`."""
    scope = code.scope(place)
    names: set[str] = set()
    for node in nodes_of(scope.node):
        draft = draft_of_call(node, code) if isinstance(node, ast.Call) else None
        if draft is not None:
            names.add(ast.unparse(draft))
    if len(names) != 1:
        return None
    name = names.pop()
    root = root_name(ast.parse(name, mode="eval").body)
    return name if _is_bound_before(root, scope, place) else None


def _is_bound_before(name: str, scope: Scope, place: ast.expr) -> bool:
    if owner_of(scope, name) is not scope:
        return True
    stores = [n.lineno for n in nodes_of(scope.node) if isinstance(n, ast.Name) and n.id == name and not _is_read(n)]
    if name in {argument.arg for argument in scope.parameters}:
        return not stores
    return len(stores) == 1 and stores[0] < place.lineno


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)
