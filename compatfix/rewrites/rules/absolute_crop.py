from __future__ import annotations

import ast
from typing import Literal

from compatfix.rewrites.cases import cache, draft, target
from compatfix.rewrites.code import Code
from compatfix.rewrites.flow.scopes import owner_of
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed

Meaning = Literal["length", "count", "unclear"]


class AbsoluteCrop(Rule):
    """Rolls a cache back with `crop`.

    ## What it does
    Finds `cache.crop(n)` on the cache of a target or a draft. Where n is a length it becomes `crop_to(cache, n)`, where
    it is a negative count `roll_back(cache, k)`. Which of the two is read from how n is computed.

    ## Why it breaks
    Until 5.14 `crop(n)` kept the first n tokens; 5.15 warns, 5.20 raises, and `crop(0)` changed from "empty" to
    "nothing". On a recurrent layer no version of crop restores the state, and 5.5 to 5.13 do not say so.

    ## Example
        cache.crop(start)
    ## Use instead
        crop_to(cache, start)

    ## Fix safety
    Safe: `crop_to` reaches the same length on every version and refuses where it cannot.
    """

    code = "CF203"
    name = "absolute-crop"
    trigger = (b".crop(", b".crop (")
    VALID = (
        "crop_to(cache, start)",
        "image.crop((0, 0, 8, 8))",
        "image.crop(box)",
        Case("picture.crop(start)", given=cache("kv")),
        Case("from compatfix_runtime import crop_to\ncrop_to(kv, start)", given=cache("kv")),
    )
    INVALID = (
        Case("kv.crop(start)", "crop_to(kv, start)", given=cache("kv")),
        Case("kv.crop(max_length=start + 1)", "crop_to(kv, start + 1)", given=cache("kv")),
        Case("kv.crop(0)", "crop_to(kv, 0)", given=cache("kv")),
        Case("kv.crop(-3)", "roll_back(kv, 3)", given=cache("kv")),
        Case("kv.crop(-rejected)", "roll_back(kv, rejected)", given=cache("kv")),
        Case("kv.crop(-(seq - wanted))", "roll_back(kv, seq - wanted)", given=cache("kv")),
        Case("kv.crop(start - kv.get_seq_length())", "crop_to(kv, start)", given=cache("kv")),
        Case("kv.crop(kv.get_seq_length() - k)", "crop_to(kv, kv.get_seq_length() - k)", given=cache("kv")),
        Case("n = -k\nkv.crop(n)", "n = -k\nroll_back(kv, -n)", given=cache("kv")),
        Case("draft_cache.crop(start)", "crop_to(draft_cache, start)", given=draft()),
        Case("loop.kv.crop(start)", "crop_to(loop.kv, start)", given=target(cache="loop.kv")),
        Case(
            "def back(c, n):\n    c.crop(n)\nback(kv, start)",
            "def back(c, n):\n    crop_to(c, n)\nback(kv, start)",
            given=cache("kv"),
        ),
        Case(
            "def back(c: DynamicCache, n):\n    c.crop(\n        n,  # kept\n    )",
            "def back(c: DynamicCache, n):\n    crop_to(\n        c,\n        n,  # kept\n    )",
            given="from transformers import DynamicCache\n",
        ),
        Case(
            "def back(c, n):\n    more = c.get_seq_length() - n\n    if more:\n        c.crop(-more)\nback(kv, 3)",
            "def back(c, n):\n    more = c.get_seq_length() - n\n    if more:\n        roll_back(c, more)\nback(kv, 3)",
            given=cache("kv"),
        ),
    )
    UNFIXABLE = (
        Case("kv.crop(a - b)", given=cache("kv"), reason="difference"),
        Case("n = -k if back else start\nkv.crop(n)", given=cache("kv"), reason="both"),
        Case("kv.crop(*sizes)", given=cache("kv"), reason="one plain argument"),
    )

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        method = node.func
        if not (isinstance(method, ast.Attribute) and method.attr == "crop" and code.is_cache(method.value)):
            return None
        values = [*node.args, *(k.value for k in node.keywords if k.arg in ("max_length", "tokens_to_remove"))]
        if len(values) != 1 or len(node.args) + len(node.keywords) != 1 or isinstance(values[0], ast.Starred):
            return Unfixed(node, "crop with anything but one plain argument; write crop_to(cache, length) by hand")
        amount, receiver = values[0], method.value
        if isinstance(amount, ast.UnaryOp) and isinstance(amount.op, ast.USub):
            return self.replace(node, "$roll_back({cache}, {count})", cache=receiver, count=amount.operand)
        if isinstance(amount, ast.BinOp) and isinstance(amount.op, ast.Sub) and _is_length_of_cache(amount.right, code):
            return self.replace(node, "$crop_to({cache}, {length})", cache=receiver, length=amount.left)
        found = _meanings(amount, code, 0)
        if found == {"length"}:
            return self.call(node, "$crop_to", receiver, positional=True)
        if found == {"count"}:
            negated = "-{amount}" if isinstance(amount, ast.Name) else "-({amount})"
            return self.replace(node, f"$roll_back({{cache}}, {negated})", cache=receiver, amount=amount)
        if "unclear" in found:
            return Unfixed(
                node,
                f"{ast.unparse(amount)} is a difference that may be a length or a negative count; "
                "write crop_to(cache, length) or roll_back(cache, count)",
            )
        return Unfixed(node, f"{ast.unparse(amount)} is both a length and a negative count, depending on the way here")


def _meanings(amount: ast.expr, code: Code, depth: int) -> set[Meaning]:
    """What a number may mean, followed through the assignments and calls that give it its value."""
    match amount:
        case ast.UnaryOp(op=ast.USub()):
            return {"count"}
        case ast.BinOp(op=ast.Sub(), left=left, right=right):
            if _is_length_of_cache(right, code):
                return {"count"}
            if isinstance(right, ast.Constant) or _is_length_of_cache(left, code):
                return _meanings(left, code, depth)
            return {"unclear"}
        case ast.BinOp(left=left, right=right):
            return _meanings(left, code, depth) | (_meanings(right, code, depth) - {"length"})
        case ast.IfExp(body=body, orelse=orelse):
            return _meanings(body, code, depth) | _meanings(orelse, code, depth)
        case ast.Call(func=ast.Name(id="min" | "int" | "max"), args=args) if args:
            return {meaning for argument in args for meaning in _meanings(argument, code, depth)}
        case ast.Name() if depth < 6:
            known = _definitions(amount, code)
            return {m for value in known for m in _meanings(value, code, depth + 1)} or {"length"}
        case _:
            # Nothing is subtracted in sight: the published meaning, a length. The runtime refuses a negative one.
            return {"length"}


def _definitions(name: ast.Name, code: Code) -> list[ast.expr]:
    """The expressions assigned to a name, or passed for it where it is a parameter."""
    scope = owner_of(code.scope(name), name.id) if code.parent(name) is not None else None
    if scope is None:
        return []
    found = list(scope.definitions.get(name.id, ()))
    parameters = [argument.arg for argument in scope.parameters]
    if name.id in parameters:
        place = parameters.index(name.id)
        for node, site in code.flow.calls.items():
            for callee in site.callees:
                if callee.scope is scope and callee.kind in ("function", "method"):
                    found.extend(k.value for k in node.keywords if k.arg == name.id)
                    shifted = place - (callee.kind == "method")
                    found.extend(node.args[shifted : shifted + 1])
    return [value for value in found if not isinstance(value, ast.Starred)]


def _is_length_of_cache(node: ast.expr, code: Code) -> bool:
    if isinstance(node, ast.Name) and code.parent(node) is not None:
        known = _definitions(node, code)
        return bool(known) and all(not isinstance(v, ast.Name) and _is_length_of_cache(v, code) for v in known)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_seq_length"
