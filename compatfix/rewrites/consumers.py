"""Who reads the hidden states of a target's output, as expressions that could be run again to see what they read."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from compatfix.rewrites.code import Code
from compatfix.rewrites.flow.evaluate import RUNTIME, Flow
from compatfix.rewrites.flow.objects import Obj, Scope
from compatfix.rewrites.flow.scopes import SCOPED, nodes_of, owner_of

# Parts of an output that can be read without touching its hidden states.
_OTHER_PARTS = {"logits", "past_key_values", "cache", "loss", "attentions"}
_HIDDEN = "hidden_states"
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_DEEPEST = 3

# What may be called again, on stand-ins, without anybody noticing.
_TORCH = {"cat", "concat", "concatenate", "stack", "hstack", "mean", "sum", "tensor", "as_tensor", "arange"}
_BUILTINS = {"range", "len", "enumerate", "zip", "list", "tuple", "sorted", "reversed", "int", "min", "max", "slice"}
_METHODS = {"append", "to", "float", "half", "contiguous", "clone", "detach", "mean", "sum", "squeeze", "unsqueeze"}
_METHODS |= {"view", "reshape", "transpose", "permute", "flatten", "size", "dim", "tolist"}


class Consumers:
    """The readers of every value of a project; made once, asked for each call of a target."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._places: dict[Obj, list[tuple[Scope, ast.expr]]] = {}
        for module in flow.project.modules():
            for scope in flow.project.scopes(module).values():
                for node in nodes_of(scope.node):
                    if isinstance(node, ast.expr):
                        for value in flow.values_of(node):
                            self._places.setdefault(value, []).append((scope, node))

    def of(self, call: ast.Call, code: Code) -> Mapping[str, ast.expr] | None:
        """Expressions by their source, with `{states}` for the hidden states; None where a reader is not clear."""
        result, scope = code.roles.target_calls[call].result, code.scope(call)
        for where, node in self._places.get(result, ()):
            if where is not scope or not _reads_a_part(node, code):
                return None
        found: dict[str, ast.expr] = {}
        helpers: set[Scope] = set()
        elsewhere: set[Scope] = set()
        for part in (_HIDDEN, f"['{_HIDDEN}']"):
            for where, node in self._places.get(self._flow.fields.part(result, part), ()):
                if where is not scope:
                    elsewhere.add(where)
                elif not _is_harmless_look(node, scope, code):
                    reader = self._reader(node, code, helpers)
                    if reader is None or not _can_run_at(reader, node, call, scope):
                        return None
                    found[ast.unparse(_with_stand_in(reader, node, "states"))] = node
        return found if elsewhere <= helpers else None

    def _reader(self, node: ast.expr, code: Code, helpers: set[Scope]) -> ast.expr | None:
        """The expression that reads entries of the hidden states at `node`, and nothing else happens in it."""
        reader = code.parent(node)
        if isinstance(reader, ast.keyword):
            reader = code.parent(reader)
        if isinstance(reader, ast.Subscript) and (reader.value is not node or not code.is_loaded(reader)):
            return None
        if not isinstance(reader, (ast.Call, ast.Subscript)) or (isinstance(reader, ast.Call) and reader.func is node):
            return None
        if isinstance(reader, ast.Call) and not self._picks(reader):
            return None
        for outer in code.around(reader):
            if isinstance(outer, (ast.stmt, *SCOPED)):
                break
            if isinstance(outer, _COMPREHENSIONS):
                reader = outer
        if isinstance(reader, ast.GeneratorExp):
            reader = ast.ListComp(reader.elt, reader.generators)  # a generator reads nothing until somebody asks
        return reader if self._is_harmless(reader, helpers, 0) else None

    def _picks(self, call: ast.Call) -> bool:
        """Functions that are not of the tree, such as torch.stack, read every entry."""
        site = self._flow.calls.get(call)
        callees = site.callees if site is not None else set()
        return all(c.kind in ("function", "method") or c.name == f"{RUNTIME}.hidden_state" for c in callees)

    def _is_harmless(self, node: ast.AST, helpers: set[Scope], depth: int) -> bool:
        """Whether an expression or a statement may be run again: no effects, no ways that depend on values."""
        for inner in ast.walk(node):
            match inner:
                case ast.Call():
                    if not self._is_harmless_call(inner, helpers, depth):
                        return False
                case ast.If(test=test) | ast.IfExp(test=test):
                    if not _is_of_none(test):
                        return False
                case ast.Assign(targets=targets):
                    if not all(_is_local(target) for target in targets):
                        return False
                case ast.AnnAssign(target=target) | ast.AugAssign(target=target) | ast.For(target=target):
                    if not _is_local(target):
                        return False
                case ast.Return() | ast.Expr() | ast.expr() | ast.comprehension() | ast.keyword():
                    if isinstance(
                        inner, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda, ast.JoinedStr)
                    ):
                        return False
                case ast.stmt():
                    return False
        return True

    def _is_harmless_call(self, call: ast.Call, helpers: set[Scope], depth: int) -> bool:
        site = self._flow.calls.get(call)
        callees = site.callees if site is not None else set()
        if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
            return all(callee.kind in ("field", "opaque", "call") for callee in callees)
        return bool(callees) and all(self._is_harmless_function(callee, helpers, depth) for callee in callees)

    def _is_harmless_function(self, callee: Obj, helpers: set[Scope], depth: int) -> bool:
        if callee.kind == "import":
            module, _, name = callee.name.rpartition(".")
            return (module == "torch" and name in _TORCH) or callee.name == f"{RUNTIME}.hidden_state"
        if callee.kind == "opaque":
            return callee.node is None and callee.name in _BUILTINS
        body = callee.scope
        if callee.kind not in ("function", "method") or body is None or depth >= _DEEPEST:
            return False
        if not isinstance(body.node, ast.FunctionDef) or any(not _is_plain(d) for d in body.node.decorator_list):
            return False
        if all(self._is_harmless(statement, helpers, depth + 1) for statement in body.node.body):
            helpers.add(body)
            return True
        return False


def _reads_a_part(node: ast.expr, code: Code) -> bool:
    """Whether at `node` a whole output is only stored under a name, or one of its parts is taken."""
    if isinstance(node, ast.Name) and not code.is_loaded(node):
        return True
    parent = code.parent(node)
    match parent:
        case ast.Assign(targets=targets, value=value):
            return value is node and all(isinstance(target, ast.Name) for target in targets)
        case ast.AnnAssign(target=target):
            return isinstance(target, ast.Name)
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name in _OTHER_PARTS | {_HIDDEN} and code.is_loaded(parent)
    return False


def _is_harmless_look(node: ast.expr, scope: Scope, code: Code) -> bool:
    """Whether hidden states are only counted, compared with None, or given a name that holds nothing else."""
    parent = code.parent(node)
    match parent:
        case _ if isinstance(node, ast.Name) and not code.is_loaded(node):
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is node:
            return _stores(scope)[name] == 1
        case ast.Compare():
            return _is_of_none(parent)
        case ast.Call(func=ast.Name(id="len")):
            return True
    return False


def _can_run_at(reader: ast.expr, origin: ast.expr, call: ast.Call, scope: Scope) -> bool:
    """Whether every name in `reader`, the hidden states aside, already has its value where the target is called."""
    inner = {n.id for n in ast.walk(reader) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    part_of_origin = set(ast.walk(origin))
    parameters = {argument.arg for argument in scope.parameters}
    stores = _stores(scope)
    for node in ast.walk(reader):
        if not isinstance(node, ast.Name) or node in part_of_origin or node.id in inner:
            continue
        if owner_of(scope, node.id) is not scope:
            continue
        before = any(line < call.lineno for line in _lines(scope, node.id))
        if stores[node.id] != (0 if node.id in parameters else 1) or not (before or node.id in parameters):
            return False
    return True


def _with_stand_in(reader: ast.expr, origin: ast.expr, name: str) -> ast.expr:
    taken = {n.id for n in ast.walk(reader) if isinstance(n, ast.Name)}
    assert name not in taken
    return copy.deepcopy(reader, {id(origin): ast.Name(name, ast.Load())})


def _stores(scope: Scope) -> Counter[str]:
    return Counter(name for name, _ in _bindings(scope))


def _lines(scope: Scope, name: str) -> list[int]:
    return [line for bound, line in _bindings(scope) if bound == name]


def _bindings(scope: Scope) -> Iterator[tuple[str, int]]:
    """The names that a body binds, each time that it does, with the line."""
    for node in nodes_of(scope.node):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], node.lineno
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, node.lineno


def _is_of_none(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.Is, ast.IsNot))
        and all(isinstance(other, ast.Constant) and other.value is None for other in test.comparators)
    )


def _is_local(target: ast.expr) -> bool:
    names: Sequence[ast.expr] = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(name, ast.Name) for name in names)


def _is_plain(decorator: ast.expr) -> bool:
    """Decorators that only change how gradients are kept, or how a method is bound."""
    inner = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
    return name in {"staticmethod", "no_grad", "inference_mode"}
