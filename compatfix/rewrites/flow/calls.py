"""What a call is given and what it may return: functions of the tree, classes, and a few well-known wrappers."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from compatfix.rewrites.flow.binding import bind, items_of
from compatfix.rewrites.flow.objects import CallSite, Obj, Scope

if TYPE_CHECKING:
    from compatfix.rewrites.flow.evaluate import Flow

# Methods that hand back the object itself, and functions that hand back their first argument.
_SAME_OBJECT = {"eval", "train", "to", "cuda", "cpu", "half", "float", "bfloat16", "requires_grad_", "contiguous"}
_FIRST_ARGUMENT = {
    "torch.compile",
    "copy.copy",
    "copy.deepcopy",
    "functools.partial",
    "torch.nn.DataParallel",
    "torch.inference_mode",
    "torch.no_grad",
}


def arguments_of(flow: Flow, node: ast.Call, scope: Scope) -> tuple[list[set[Obj]], dict[str, set[Obj]]]:
    positional: list[set[Obj]] = []
    for argument in node.args:
        values = flow.evaluate(argument, scope)
        positional.append(items_of(values, flow.fields) if isinstance(argument, ast.Starred) else set(values))
    keywords: dict[str, set[Obj]] = {}
    for keyword in node.keywords:
        values = flow.evaluate(keyword.value, scope)
        if keyword.arg is not None:
            keywords.setdefault(keyword.arg, set()).update(values)
            continue
        for owner in values:
            for name in list(flow.fields.names(owner)):
                keywords.setdefault(name[2:-2], set()).update(flow.fields.known(owner, name))
    return positional, keywords


def result_of(flow: Flow, callee: Obj, site: CallSite) -> set[Obj]:
    first = site.positional[0] if site.positional else set()
    if callee.kind in ("function", "method") and callee.scope is not None:
        bind(flow, callee, callee.scope, site)
        return callee.scope.returns | {site.result}
    if callee.kind == "class" and callee.scope is not None:
        made = flow.instance(callee.scope)
        for method in flow.inherited(made, "__init__", callee.scope, 0):
            if method.scope is not None:
                bind(flow, method, method.scope, site)
        return {made}
    if callee.kind == "instance" and callee.scope is not None:
        results = {site.result}
        for name in ("__call__", "forward"):
            for method in flow.inherited(callee, name, callee.scope, 0):
                if method.kind == "method" and method.scope is not None:
                    bind(flow, method, method.scope, site)
                    results |= method.scope.returns
        return results
    if callee.kind == "field" and callee.parent is not None:
        if callee.name in _SAME_OBJECT:
            return {callee.parent}
        if callee.parent.kind == "class" and callee.parent.scope is not None:
            return {flow.instance(callee.parent.scope)}
    if callee.kind == "import" and callee.name in _FIRST_ARGUMENT and first:
        if callee.name == "functools.partial":
            _partial(flow, first, site)
        return set(first)
    if callee.kind == "opaque" and callee.name == "dict":
        made = flow.single("dict", site.node, node=site.node)
        for name, values in site.keywords.items():
            flow.add(flow.fields.stored(made, f"['{name}']"), values)
        return {made}
    if callee.kind == "opaque" and callee.name == "getattr" and len(site.node.args) > 1:
        named = site.node.args[1]
        if isinstance(named, ast.Constant) and isinstance(named.value, str):
            found = {v for owner in first for v in flow.attribute(owner, named.value)}
            return found | (site.positional[2] if len(site.positional) > 2 else set())
    return {site.result}


def _partial(flow: Flow, functions: set[Obj], site: CallSite) -> None:
    rest = CallSite(site.node, site.scope, site.result, functions, site.positional[1:], site.keywords)
    for function in functions:
        if function.kind in ("function", "method") and function.scope is not None:
            bind(flow, function, function.scope, rest)
