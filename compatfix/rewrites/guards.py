"""Whether code runs only where its device or its package is there."""

from __future__ import annotations

import ast

from compatfix.rewrites.code import Code
from compatfix.rewrites.flow.scopes import SCOPED

_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def is_for_cuda(node: ast.AST, code: Code) -> bool:
    """Whether a condition around the node, or an early exit before it, asks for CUDA."""
    inner: ast.AST = node
    for outer in code.around(node):
        if isinstance(outer, (ast.If, ast.IfExp, ast.While)) and inner is not outer.test and asks_for_cuda(outer.test):
            return True
        if isinstance(outer, ast.BoolOp) and any(asks_for_cuda(v) for v in outer.values if v is not inner):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) and inner in outer.body:
            if any(asks_for_cuda(decorator) for decorator in outer.decorator_list):
                return True
            before = outer.body[: outer.body.index(inner)]
            return any(_leaves_without_cuda(statement) for statement in before)
        if isinstance(outer, SCOPED):
            return False
        inner = outer
    return False


def asks_for_cuda(test: ast.AST) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and node.attr in ("is_available", "is_cuda", "device_count"):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda"):
            return True
        if isinstance(node, ast.Name) and "cuda" in node.id.lower():
            return True
    return False


def _leaves_without_cuda(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and asks_for_cuda(statement.test) and isinstance(statement.body[-1], _EXITS)
