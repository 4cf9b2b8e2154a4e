"""Adds the import of the runtime once, in the right place, and removes imports that the fixes left without a use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

import libcst as cst

from compatfix.rewrites.flow.evaluate import RUNTIME

PREFIX = "compatfix_"
_LINE = 88  # the narrowest limit in common use


def local_names(tree: ast.Module, wanted: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """What this file calls each function of the runtime, and which of them it has still to import.

    A name that the file binds for itself, anywhere, is left to it: the function is then imported under another.
    """
    present = _imported(tree)
    taken = _bound(tree) - set(present.values())
    names: dict[str, str] = {}
    missing: list[str] = []
    for function in sorted(set(wanted)):
        if function in present:
            names[function] = present[function]
            continue
        names[function] = PREFIX + function if function in taken else function
        missing.append(function)
    return names, missing


def with_import(
    module: cst.Module, source: str, missing: Iterable[str], names: Mapping[str, str], first_use: int
) -> cst.Module:
    """The module with the runtime imported. `source` is the module to import from, dots included.

    `first_use` is the number of the first top-level statement that runs an edited expression, or a large number.
    """
    aliases = {function: names[function] for function in missing}
    if not aliases:
        return module
    body = list(module.body)
    for place, statement in enumerate(body):
        if place < first_use and (line := _runtime_import(statement)) is not None:
            assert isinstance(statement, cst.SimpleStatementLine)
            extended = line.with_changes(names=_aliases({**_present(line), **aliases}, line))
            small = [extended if part is line else part for part in statement.body]
            body[place] = statement.with_changes(body=small)
            return module.with_changes(body=body)
    place, after_import = _place(body, first_use)
    written = _statement(source, aliases).replace("\n", module.default_newline)
    parsed = cst.parse_statement(written, config=module.config_for_parsing)
    assert isinstance(parsed, cst.SimpleStatementLine)
    lines: list[cst.EmptyLine] = []
    if not after_import and place > 0:
        lines = [cst.EmptyLine(indent=False)]
    elif place < len(body) and not after_import:
        # The file's first lines (shebang, licence) stay first: they are the module's header.
        lines = []
    body.insert(place, parsed.with_changes(leading_lines=lines))
    return module.with_changes(body=body)


def without_unused(module: cst.Module, before: ast.Module, after: ast.Module, elsewhere: set[str]) -> cst.Module:
    """Drops the imported names that were used before the edits and are not used after, here or by other files."""
    gone = (_import_bound(before) & _used(before)) - _used(after) - set(_imported(after).values()) - elsewhere
    if not gone or "*" in elsewhere:
        return module
    result = module.visit(_Dropper(gone))
    assert isinstance(result, cst.Module)
    return result


class _Dropper(cst.CSTTransformer):
    """Removes names from top-level imports; a statement that imports nothing more goes with its line."""

    def __init__(self, gone: set[str]) -> None:
        super().__init__()
        self._gone = gone
        self._depth = 0

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:
        return False

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        kept = [alias for alias in updated_node.names if _alias_name(alias) not in self._gone]
        if len(kept) == len(updated_node.names):
            return updated_node
        if not kept:
            return cst.RemoveFromParent()
        if updated_node.names[-1] is not kept[-1]:
            kept[-1] = kept[-1].with_changes(comma=updated_node.names[-1].comma)
        return updated_node.with_changes(names=kept)


def _place(body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement], first_use: int) -> tuple[int, bool]:
    """Where the import goes, and whether it stands right behind another one."""
    start = 0
    if body and _is_docstring(body[0]):
        start = 1
    while start < len(body) and _is_future(body[start]):
        start += 1
    last = None
    for place in range(start, len(body)):
        statement = body[place]
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) or place >= first_use:
            break
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(part, (cst.Import, cst.ImportFrom)) for part in statement.body
        ):
            last = place
    return (start, False) if last is None else (last + 1, True)


def _runtime_import(statement: cst.CSTNode) -> cst.ImportFrom | None:
    if isinstance(statement, cst.SimpleStatementLine):
        for part in statement.body:
            if isinstance(part, cst.ImportFrom) and part.module is not None:
                dotted = cst.Module([]).code_for_node(part.module)
                if dotted.split(".")[-1] == RUNTIME and not isinstance(part.names, cst.ImportStar):
                    return part
    return None


def _present(line: cst.ImportFrom) -> dict[str, str]:
    assert not isinstance(line.names, cst.ImportStar)
    return {cst.Module([]).code_for_node(alias.name): _alias_name(alias) for alias in line.names}


def _aliases(aliases: Mapping[str, str], line: cst.ImportFrom) -> list[cst.ImportAlias]:
    parsed = cst.parse_statement(f"from x import {_written(aliases)}")
    assert isinstance(parsed, cst.SimpleStatementLine) and isinstance(parsed.body[0], cst.ImportFrom)
    assert not isinstance(parsed.body[0].names, cst.ImportStar) and not isinstance(line.names, cst.ImportStar)
    names = list(parsed.body[0].names)
    old = list(line.names)
    if line.lpar is not None and len(old) > 1 and isinstance(old[0].comma, cst.Comma):
        names = [name.with_changes(comma=old[0].comma) for name in names]
        names[-1] = names[-1].with_changes(comma=old[-1].comma)
    return names


def _written(aliases: Mapping[str, str]) -> str:
    return ", ".join(f if f == name else f"{f} as {name}" for f, name in sorted(aliases.items()))


def _statement(source: str, aliases: Mapping[str, str]) -> str:
    line = f"from {source} import {_written(aliases)}"
    if len(line) <= _LINE:
        return line
    return f"from {source} import (\n    {_written(aliases).replace(', ', f',{chr(10)}    ')},\n)"


def _alias_name(alias: cst.ImportAlias) -> str:
    if alias.asname is not None:
        assert isinstance(alias.asname.name, cst.Name)
        return alias.asname.name.value
    return cst.Module([]).code_for_node(alias.name).split(".")[0]


def _is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def _is_future(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    part = statement.body[0]
    return isinstance(part, cst.ImportFrom) and isinstance(part.module, cst.Name) and part.module.value == "__future__"


def _imported(tree: ast.Module) -> dict[str, str]:
    """Functions of the runtime that the top level of the file imports, by what it calls them."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == RUNTIME:
            found.update({alias.name: alias.asname or alias.name for alias in node.names})
    return found


def _import_bound(tree: ast.Module) -> set[str]:
    """Names that `from … import` binds at the top level; a name in `__all__` is used by that."""
    return {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }


def _bound(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def _used(tree: ast.Module) -> set[str]:
    """Names read anywhere, string annotations and `__all__` included."""
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            used.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            used.update(word for word in node.value.replace(".", " ").replace("[", " ").replace("]", " ").split())
    return used
