"""What a rule is: a page of documentation, cases that are its tests, and a small function that finds what to edit."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from compatfix.rewrites.code import Code


@dataclass(frozen=True)
class Case:
    """A snippet before and after a rule. `after` None: the rule leaves it alone. `given` is code that comes first.

    `reason` is part of the reason with which the rule reports the snippet as beyond its reach.
    """

    before: str
    after: str | None = None
    given: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class Edit:
    """One replacement of an expression.

    With `template`, the expression becomes that source: `{name}` stands for an expression of the file (`holes`), and
    `$name` for a function of the runtime under the name that this file gives it. Without, the expression is a call that
    becomes a call of `function` (None: the same) with the arguments in `leading` put first and those in `drop` left
    out; with `positional`, keyword names go.
    """

    node: ast.expr
    template: str | None = None
    holes: Mapping[str, ast.expr] = field(default_factory=dict)
    function: str | None = None
    leading: tuple[ast.expr | str, ...] = ()
    drop: tuple[ast.expr, ...] = ()
    positional: bool = False

    @property
    def runtime(self) -> tuple[str, ...]:
        """The functions of the runtime that the new code calls."""
        source = self.template if self.template is not None else (self.function or "")
        return tuple(re.findall(r"\$(\w+)", source))


@dataclass(frozen=True)
class Unfixed:
    """A place that the rule recognises and cannot mend, with the reason and what a reader may do."""

    node: ast.expr | ast.stmt
    reason: str


Outcome = Edit | Unfixed | None


class Rule:
    """Base of all rules. Subclasses define the visiting function of the node type that they look at."""

    code: ClassVar[str]
    name: ClassVar[str]
    trigger: ClassVar[tuple[bytes, ...]]
    safe: ClassVar[bool] = True
    VALID: ClassVar[Sequence[str | Case]] = ()
    INVALID: ClassVar[Sequence[Case]] = ()
    UNFIXABLE: ClassVar[Sequence[Case]] = ()

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        return None

    def visit_attribute(self, node: ast.Attribute, code: Code) -> Outcome:
        return None

    def visit_subscript(self, node: ast.Subscript, code: Code) -> Outcome:
        return None

    def visit_constant(self, node: ast.Constant, code: Code) -> Outcome:
        return None

    def visit_loop(self, node: ast.For, code: Code) -> Outcome:
        return None

    def visit(self, node: ast.AST, code: Code) -> Outcome:
        match node:
            case ast.Call():
                return self.visit_call(node, code)
            case ast.Attribute():
                return self.visit_attribute(node, code)
            case ast.Subscript():
                return self.visit_subscript(node, code)
            case ast.Constant():
                return self.visit_constant(node, code)
            case ast.For():
                return self.visit_loop(node, code)
        return None

    @classmethod
    def page(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")

    @staticmethod
    def replace(node: ast.expr, template: str, **holes: ast.expr) -> Edit:
        return Edit(node, template=template, holes=holes)

    @staticmethod
    def call(node: ast.Call, function: str | None, *leading: ast.expr | str, **options: object) -> Edit:
        return Edit(node, function=function, leading=leading, **options)  # type: ignore[arg-type]
