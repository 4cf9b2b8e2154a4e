"""Recognises a function that picks tokens out of a cache's keys and values, and what its parameters mean."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from compatfix.rewrites.code import Code
from compatfix.rewrites.flow.objects import Obj, Scope

_STORES = {"keys", "values", "key_cache", "value_cache"}
_PICKS = {"index_select", "gather", "take_along_dim", "take", "index_copy_"}


@dataclass(frozen=True)
class Compaction:
    """Parameter names by meaning, and the place of each parameter. `past` None: no length that indices count from."""

    cache: str
    indices: str | None
    past: str | None
    places: dict[str, int]


def compaction_of(function: Obj, code: Code) -> Compaction | None:
    """The meaning of the parameters of a compaction, or None where the function is none."""
    body = function.scope
    if body is None or isinstance(body.node, ast.Lambda) or not selects_stored_keys(body.node, code):
        return None
    names = [argument.arg for argument in body.parameters]
    caches = [name for name in names if _holds_keys(name, body)]
    if len(caches) != 1:
        return None
    others = [name for name in names if name != caches[0] and not (function.kind == "method" and name == names[0])]
    indices = [name for name in others if _is_indices(name, body)]
    lengths = [name for name in others if name not in indices and _is_offset(name, body)]
    return Compaction(
        caches[0],
        indices[0] if len(indices) == 1 else None,
        lengths[0] if len(lengths) == 1 else None,
        {name: place for place, name in enumerate(names)},
    )


def selects_stored_keys(node: ast.AST, code: Code, depth: int = 0) -> bool:
    """Whether code assigns keys or values that it picked by index, itself or through a function of the tree."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign) and any(_is_store(target) for target in inner.targets):
            return _picks(inner.value, code, depth) or _picks_somewhere(node, code)
        if isinstance(inner, ast.For) and _mentions_store(inner.iter) and _picks_somewhere(inner, code):
            return True
    return False


def _picks_somewhere(node: ast.AST, code: Code) -> bool:
    return any(_picks(inner, code, 0) for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _picks(value: ast.AST, code: Code, depth: int) -> bool:
    for inner in ast.walk(value):
        if isinstance(inner, ast.Subscript) and _is_advanced(inner.slice):
            return True
        if not isinstance(inner, ast.Call):
            continue
        if isinstance(inner.func, ast.Attribute) and inner.func.attr in _PICKS:
            return True
        site = code.site(inner)
        for callee in site.callees if site is not None and depth < 3 else ():
            if callee.kind in ("function", "method") and callee.scope is not None:
                body = getattr(callee.scope.node, "body", None)
                if isinstance(body, list) and any(_picks(statement, code, depth + 1) for statement in body):
                    return True
    return False


def _is_advanced(index: ast.expr) -> bool:
    """`x[:, :, picked]`: something computed among slices."""
    computed = (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.Subscript, ast.List, ast.ListComp)
    return (
        isinstance(index, ast.Tuple)
        and any(isinstance(part, ast.Slice) for part in index.elts)
        and any(isinstance(part, computed) for part in index.elts)
    )


def _is_store(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple):
        return any(_is_store(part) for part in target.elts)
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and target.attr in _STORES


def _mentions_store(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in ("key_cache", "value_cache") for n in ast.walk(node))


def _holds_keys(name: str, body: Scope) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("layers", "key_cache", "value_cache")
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in ast.walk(body.node)
    )


def _is_indices(name: str, body: Scope) -> bool:
    """A parameter that is made a tensor, counted, iterated, or handed to a pick as its index."""
    for node in ast.walk(body.node):
        match node:
            case ast.Call(func=ast.Attribute(attr=method), args=args) if method in (*_PICKS, "tensor", "as_tensor"):
                if any(_is_name(argument, name) for argument in args):
                    return True
            case ast.Call(func=ast.Name(id="len" | "list" | "enumerate" | "torch"), args=args):
                if any(_is_name(argument, name) for argument in args):
                    return True
            case ast.For(iter=source) | ast.comprehension(iter=source) if _is_name(source, name):
                return True
            case ast.Attribute(value=value, attr="to" | "device" | "numel" | "shape") if _is_name(value, name):
                return True
            case ast.Subscript(slice=index) if _is_advanced(index) and isinstance(index, ast.Tuple):
                if any(_is_name(part, name) for part in index.elts):
                    return True
    return _passed_as_last(name, body)


def _passed_as_last(name: str, body: Scope) -> bool:
    """`take(layer.keys, past, picked)`: the last argument of a function that is given the keys."""
    for node in ast.walk(body.node):
        if isinstance(node, ast.Call) and len(node.args) > 2 and _is_name(node.args[-1], name):
            return any(isinstance(n, ast.Attribute) and n.attr in _STORES for n in ast.walk(node.args[0]))
    return False


def _is_offset(name: str, body: Scope) -> bool:
    """A parameter that is added to something, bounds a slice, or goes to a function along with the keys."""
    for node in ast.walk(body.node):
        match node:
            case ast.BinOp(op=ast.Add(), left=left, right=right) if _is_name(left, name) or _is_name(right, name):
                return True
            case ast.Slice(lower=lower, upper=upper) if _is_name(lower, name) or _is_name(upper, name):
                return True
            case ast.Call(args=args) if len(args) > 2 and any(_is_name(a, name) for a in args[1:-1]):
                return True
    return False


def _is_name(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
