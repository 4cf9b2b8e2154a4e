"""Comments that switch rules off for one statement: `# compatfix: ignore[CF201]`, or without brackets for all rules."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from compatfix.codes import lookup

_COMMENT = re.compile(r"#\s*compatfix:\s*ignore(?:\[([^\]]*)\])?")
EVERY = "*"


def suppressions(data: bytes) -> dict[int, set[str]]:
    """Codes by the line of the comment that switches them off."""
    if b"compatfix:" not in data:
        return {}
    found: dict[int, set[str]] = {}
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                found.setdefault(token.start[0], set()).update(_codes(match[1]))
    except (tokenize.TokenError, SyntaxError):
        return found
    return found


def is_suppressed(code: str, node: ast.AST, statement: ast.stmt, lines: dict[int, set[str]]) -> bool:
    """The comment may stand on the first or the last line of the expression, or of the statement that holds it."""
    if not lines:
        return False
    places = [node.lineno, node.end_lineno, statement.lineno]  # type: ignore[attr-defined]
    if not hasattr(statement, "body"):
        places.append(statement.end_lineno)
    return any({code, EVERY} & lines.get(line, set()) for line in places)


def _codes(listed: str | None) -> set[str]:
    if listed is None:
        return {EVERY}
    entries = [lookup(name) for name in listed.split(",")]
    return {entry.code for entry in entries if entry is not None}
