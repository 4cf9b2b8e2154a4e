"""Applies edits to the concrete syntax tree, so that everything outside the edited expressions stays byte for byte."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from compatfix.rewrites.rule import Edit

Span = tuple[int, int, int, int]
_HOLE = re.compile(r"\{(\w+)\}")
_RUNTIME = re.compile(r"\$(\w+)")


class NotReproduced(Exception):
    """The concrete syntax tree does not stand for the file exactly, or an edit finds no node in it."""


def edited(module: cst.Module, lines: Sequence[str], edits: Sequence[Edit], names: Mapping[str, str]) -> Edited:
    """The module with all edits made. `names` maps functions of the runtime to what this file calls them."""
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    ranges = wrapper.resolve(PositionProvider)
    by_span: dict[Span, cst.BaseExpression] = {}
    for node, place in ranges.items():
        if isinstance(node, cst.BaseExpression):
            by_span[place.start.line, place.start.column, place.end.line, place.end.column] = node
    for node in list(by_span.values()):
        # `ast` counts the parentheses of a tuple or a generator as its own.
        for left, right in zip(node.lpar, reversed(node.rpar), strict=False):
            start, end = ranges[left].start, ranges[right].end
            by_span.setdefault((start.line, start.column, end.line, end.column), node)
    transformer = _Editor(by_span, lines, edits, names)
    result = wrapper.module.visit(transformer)
    if transformer.missing:
        raise NotReproduced(f"no expression at line {transformer.missing[0]}")
    return Edited(result, transformer.sources)


class Edited:
    """A rewritten module and, for each edit, the source of its expression before and after."""

    def __init__(self, module: cst.Module, sources: dict[int, tuple[str, str]]) -> None:
        self.module = module
        self.sources = sources


class _Editor(cst.CSTTransformer):
    def __init__(
        self,
        by_span: Mapping[Span, cst.BaseExpression],
        lines: Sequence[str],
        edits: Sequence[Edit],
        names: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._names = names
        self._edits: dict[cst.CSTNode, tuple[int, Edit]] = {}
        self._wanted: dict[cst.CSTNode, list[ast.expr]] = {}
        self._updated: dict[ast.expr, cst.BaseExpression] = {}
        self.sources: dict[int, tuple[str, str]] = {}
        self.missing: list[int] = []
        self._empty = cst.Module([])
        for number, edit in enumerate(edits):
            parts = [*edit.holes.values(), *edit.drop, *(part for part in edit.leading if isinstance(part, ast.expr))]
            node = by_span.get(span_of(edit.node, lines))
            if node is None:
                self.missing.append(edit.node.lineno)
                continue
            self._edits[node] = (number, edit)
            for part in parts:
                found = by_span.get(span_of(part, lines))
                if found is None:
                    self.missing.append(part.lineno)
                    continue
                self._wanted.setdefault(found, []).append(part)

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        node = super().on_leave(original_node, updated_node)
        here = self._edits.get(original_node)
        if here is not None and not self.missing:
            number, edit = here
            assert isinstance(node, cst.BaseExpression)
            before = self._empty.code_for_node(original_node)
            self._updated[edit.node] = node  # an edit may wrap its own expression
            node = self._rewrite(edit, node)
            self.sources[number] = (before, self._empty.code_for_node(node))
        for part in self._wanted.get(original_node, ()):
            assert isinstance(node, cst.BaseExpression)
            self._updated[part] = node
        return node  # type: ignore[return-value]

    def _rewrite(self, edit: Edit, node: cst.BaseExpression) -> cst.BaseExpression:
        if edit.template is None:
            assert isinstance(node, cst.Call)
            return self._call(edit, node)
        source = _RUNTIME.sub(lambda match: self._names[match[1]], edit.template)
        made = cst.parse_expression(_HOLE.sub(lambda match: f"_hole_{match[1]}_", source))
        parts = {f"_hole_{name}_": self._updated[part] for name, part in edit.holes.items()}
        for name in edit.holes:
            if re.search(rf"[(,] ?\{{{name}\}}[,)]", edit.template):
                parts[f"_hole_{name}_"] = _bare(parts[f"_hole_{name}_"])
        filled = made.visit(_Fill(parts))
        assert isinstance(filled, cst.BaseExpression)
        return filled.with_changes(lpar=node.lpar, rpar=node.rpar) if node.lpar else filled

    def _call(self, edit: Edit, node: cst.Call) -> cst.Call:
        dropped = [self._updated[part] for part in edit.drop]
        arguments = [argument for argument in node.args if not any(argument.value is gone for gone in dropped)]
        if dropped and arguments and node.args[-1] not in arguments:
            # The comma that ended the list ends it still.
            arguments[-1] = arguments[-1].with_changes(comma=node.args[-1].comma)
        if edit.positional:
            arguments = [a.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT) for a in arguments]
        leading = [self._leading(part) for part in edit.leading]
        opening = node.whitespace_before_args
        if leading and isinstance(opening, cst.ParenthesizedWhitespace) and arguments:
            # One argument a line: the new ones get lines of their own.
            between: cst.BaseParenthesizableWhitespace = opening
        else:
            between = cst.SimpleWhitespace(" ")
        added: list[cst.Arg] = []
        for place, value in enumerate(leading):
            if place + 1 == len(leading) and not arguments:
                added.append(cst.Arg(value))
            else:
                added.append(cst.Arg(value, comma=cst.Comma(whitespace_after=between)))
        if isinstance(between, cst.ParenthesizedWhitespace):
            opening = between.with_changes(first_line=cst.TrailingWhitespace(newline=between.first_line.newline))
        function = node.func if edit.function is None else self._function(edit.function)
        return node.with_changes(func=function, args=[*added, *arguments], whitespace_before_args=opening)

    def _leading(self, part: ast.expr | str) -> cst.BaseExpression:
        return cst.parse_expression(part) if isinstance(part, str) else self._updated[part]

    def _function(self, template: str) -> cst.BaseExpression:
        return cst.Name(self._names[template.removeprefix("$")])


def _bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression without parentheses of its own: the commas around an argument do their work."""
    if isinstance(node, (cst.BinaryOperation, cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        return node.with_changes(lpar=(), rpar=())
    return node


class _Fill(cst.CSTTransformer):
    """Puts expressions of the file in the places that a template leaves for them."""

    def __init__(self, parts: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self._parts = parts

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._parts.get(original_node.value, updated_node)


def span_of(node: ast.AST, lines: Sequence[str]) -> Span:
    """Where a node stands in characters; `ast` counts columns in UTF-8 bytes."""
    start = characters(lines, node.lineno, node.col_offset)  # type: ignore[attr-defined]
    end = characters(lines, node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return node.lineno, start, node.end_lineno, end  # type: ignore[attr-defined]


def characters(lines: Sequence[str], line: int, column: int) -> int:
    text = lines[line - 1] if line <= len(lines) else ""
    if text.isascii():
        return column
    return len(text.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))
