from __future__ import annotations

import ast

from compatfix.rewrites.code import Code
from compatfix.rewrites.rule import Case, Outcome, Rule


class CacheUpdateKwargs(Rule):
    """Passes `cache_kwargs` to `Cache.update`.

    ## What it does
    Finds `cache.update(keys, values, layer_idx, cache_kwargs)` and leaves the fourth argument out.

    ## Why it breaks
    The parameter went away in 5.4, where a fourth positional argument falls into `*args` unread; in 5.24 the library's
    own models use `kwargs=` there with another meaning. The layers that a dynamic cache has never needed it.

    ## Example
        key, value = cache.update(key, value, self.layer_idx, cache_kwargs)
    ## Use instead
        key, value = cache.update(key, value, self.layer_idx)

    ## Fix safety
    Safe for dynamic caches: rotary angles and positions in it were read by static and sink caches only.
    """

    code = "CF501"
    name = "cache-update-kwargs"
    trigger = (b".update(", b".update (")
    VALID = (
        "settings.update({'a': 1})",
        "key, value = cache.update(key, value, 0)",
        "table.update(a, b, c, extra=d)",
        "class Own:\n    def update(self, k, v, i, extra):\n        return k, v\n"
        "def run(own: Own):\n    return own.update(k, v, 0, extra)",
    )
    INVALID = (
        Case("k, v = kv.update(k, v, self.layer_idx, cache_kwargs)", "k, v = kv.update(k, v, self.layer_idx)"),
        Case("k, v = kv.update(k, v, 0, {'sin': sin})", "k, v = kv.update(k, v, 0)"),
        Case("k, v = kv.update(k, v, 0, cache_kwargs=extra)", "k, v = kv.update(k, v, 0)"),
        Case("x = kv.update(\n    k,\n    v,\n    0,\n    extra,\n)", "x = kv.update(\n    k,\n    v,\n    0,\n)"),
    )

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        method = node.func
        if not (isinstance(method, ast.Attribute) and method.attr == "update"):
            return None
        if any(isinstance(argument, ast.Starred) for argument in node.args) or _is_own(method, code):
            return None
        named = [keyword for keyword in node.keywords if keyword.arg == "cache_kwargs"]
        if len(node.args) == 4 and not node.keywords:
            return self.call(node, None, drop=(node.args[3],))
        if len(node.args) == 3 and len(node.keywords) == 1 and named:
            return self.call(node, None, drop=(named[0].value,))
        return None


def _is_own(method: ast.Attribute, code: Code) -> bool:
    """The method is one that the tree defines, and may read the argument."""
    return any(value.kind in ("method", "function") for value in code.values(method))
