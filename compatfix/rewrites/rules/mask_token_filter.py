from __future__ import annotations

import ast

from compatfix.rewrites.code import Code
from compatfix.rewrites.flow.objects import CallSite, Obj
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed

_LOOP = (
    "import torch\nout = torch.full((1, size), mask_id)\nstart = prompt\nwhile start < size:\n"
    "    out[:, start : start + n] = block\n    out[:, start + n] = last\n    start += n\n"
)


class MaskTokenFilter(Rule):
    """Drops every emitted token that equals the mask token.

    ## What it does
    Finds `output_ids[:, output_ids[0] != mask_token_id]` on a buffer that was filled with the mask token, and cuts the
    buffer at its filled length instead. The length is read from the loop that fills it.

    ## Why it breaks
    The mask token is a token of the vocabulary. A target that emits it (a real one seldom, a small one often) loses it
    from its output, so the text is not the target's, and everything after it moves.

    ## Example
        output_ids = output_ids[:, output_ids[0] != mask_token_id]
    ## Use instead
        output_ids = output_ids[:, : start + 1]

    ## Fix safety
    Safe where the loop is recognised: the buffer is written from the loop's counter on, the counter moves by what was
    written, and one token more stands at the counter. Otherwise reported.
    """

    code = "CF701"
    name = "mask-token-filter"
    trigger = (b"torch", b"full")
    VALID = (
        Case("out = out[:, : start + 1]", given=_LOOP),
        Case("text = text[:, text[0] != pad_id]", given=_LOOP),
        Case("rows = table[:, table[0] != 3]", given="import torch\ntable = torch.zeros(3, 4)\n"),
        Case("rows = out[:, out[0] != other_id]", given=_LOOP),
    )
    INVALID = (
        Case("out = out[:, out[0] != mask_id]", "out = out[:, : start + 1]", given=_LOOP),
        Case(
            "out = out[:, :size]\nout = out[:, out[0] != mask_id]",
            "out = out[:, :size]\nout = out[:, : start + 1]",
            given=_LOOP,
        ),
        Case("ids = out[:, mask_id != out[0]]", "ids = out[:, : start + 1]", given=_LOOP),
        Case("ids = out[:, out[0].ne(mask_id)]", "ids = out[:, : start + 1]", given=_LOOP),
        Case(
            "ids = out[:, out[0] != mask_id]",
            "ids = out[:, : at + 1]",
            given=_LOOP.replace("start", "at").replace("at += n", "before, at = at, at + n"),
        ),
    )
    UNFIXABLE = (
        Case(
            "out = torch.full((1, size), mask_id)\nfill(out)\nout = out[:, out[0] != mask_id]",
            given="import torch\n",
            reason="no loop",
        ),
        Case(
            "out = out[:, out[0] != mask_id]",
            given=_LOOP.replace("    start += n\n", "    if done:\n        break\n    start += n\n"),
            reason="may leave",
        ),
    )

    def visit_subscript(self, node: ast.Subscript, code: Code) -> Outcome:
        token = _dropped_token(node)
        if token is None or not code.is_loaded(node):
            return None
        buffers = {made for value in code.values(node.value) for made in value.chain() if _is_filled(made, token, code)}
        if not buffers:
            return None
        function = code.scope(node)
        loops = [n for n in ast.walk(function.node) if isinstance(n, ast.While) and n.lineno < node.lineno]
        for loop in loops:
            for write in ast.walk(loop):
                counter = _counter_of_write(write, buffers, code)
                if counter is None:
                    continue
                moved = _moves(loop, counter)
                if moved is None:
                    continue
                if _may_leave_between(loop, write, moved):
                    return Unfixed(
                        node, f"the loop may leave before {counter} moves, so the filled length is not {counter} + 1"
                    )
                return self.replace(node, "{buffer}[:, : " + counter + " + 1]", buffer=node.value)
        return Unfixed(
            node,
            "tokens that equal the mask token are dropped from the output, and no loop that fills the buffer from a "
            "counter is found; cut the buffer at its filled length",
        )


def _dropped_token(node: ast.Subscript) -> ast.expr | None:
    """The token that `x[:, x[0] != token]` drops."""
    index = node.slice
    if not (isinstance(index, ast.Tuple) and len(index.elts) == 2 and isinstance(index.elts[0], ast.Slice)):
        return None
    buffer = ast.dump(node.value)

    def is_row(part: ast.expr) -> bool:
        return isinstance(part, ast.Subscript) and ast.dump(part.value) == buffer

    match index.elts[1]:
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
            return right if is_row(left) else left if is_row(right) else None
        case ast.Call(func=ast.Attribute(value=row, attr="ne"), args=[token]) if is_row(row):
            return token
    return None


def _is_filled(made: Obj, token: ast.expr, code: Code) -> bool:
    """Whether a value is a `torch.full` of this very token."""
    if made.kind != "call" or not isinstance(made.node, ast.Call):
        return False
    site: CallSite | None = code.site(made.node)
    if site is None or not any(
        c.kind == "import" and c.name in ("torch.full", "torch.full_like") for c in site.callees
    ):
        return False
    fill = next((k.value for k in made.node.keywords if k.arg == "fill_value"), None)
    if fill is None and len(made.node.args) > 1:
        fill = made.node.args[1]
    return fill is not None and (ast.dump(fill) == ast.dump(token) or bool(code.values(fill) & code.values(token)))


def _counter_of_write(node: ast.AST, buffers: set[Obj], code: Code) -> str | None:
    """The name c of a write `buffer[:, c : …] = …`."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    target = node.targets[0]
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Tuple):
        return None
    if not any(made in buffers for value in code.values(target.value) for made in value.chain()):
        return None
    last = target.slice.elts[-1]
    if isinstance(last, ast.Slice) and isinstance(last.lower, ast.Name):
        return last.lower.id
    return None


def _moves(loop: ast.While, counter: str) -> ast.stmt | None:
    """The statement of the loop that moves the counter forward."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and _is_name(node.target, counter):
            return node
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            for target, value in list(pairs):
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs.extend(zip(target.elts, value.elts, strict=False))
            for target, value in pairs:
                if _is_name(target, counter) and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                    return node
    return None


def _may_leave_between(loop: ast.While, write: ast.AST, moved: ast.stmt) -> bool:
    first, last = sorted((write.lineno, moved.lineno))  # type: ignore[attr-defined]
    return any(isinstance(n, (ast.Break, ast.Return, ast.Continue)) and first < n.lineno < last for n in ast.walk(loop))


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
