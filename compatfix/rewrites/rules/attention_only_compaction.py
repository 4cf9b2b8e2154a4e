from __future__ import annotations

import ast

from compatfix.rewrites.cases import target, verified
from compatfix.rewrites.code import Code
from compatfix.rewrites.compaction import compaction_of, selects_stored_keys
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed

_HELPER = (
    "def keep(kv, past, picked):\n    for layer in kv.layers:\n"
    "        layer.keys = take(layer.keys, past, picked)\n        layer.values = take(layer.values, past, picked)\n"
    "def take(states, past, picked):\n    return states[..., past:, :].index_select(-2, picked)\n"
)
_LOOP = "for layer in cache.layers:\n    layer.keys = layer.keys.index_select(-2, picked)"


class AttentionOnlyCompaction(Rule):
    """Keeps the accepted path in the keys and values, and nowhere else.

    ## What it does
    Finds the call of a helper that picks tokens out of the target cache's keys and values, and commits the same tokens
    through the runtime. The helper stays where it is.

    ## Why it breaks
    Recurrent and convolutional layers have no keys to pick from: their state stays at the last node of the tree, that
    of a rejected branch as a rule. Nothing is raised, and the next token is computed from another text. The helper also
    depends on where a version of the library keeps the tensors.

    ## Example
        compact_dynamic_cache(cache, start, accepted_indices)
    ## Use instead
        commit(cache, accepted_indices)

    ## Fix safety
    Safe where the helper counts its indices from the start of the latest forward, which is checked: it takes a past
    length that it adds to them or slices by. Anything else is reported and left alone. Needs CF202.
    """

    code = "CF206"
    name = "attention-only-compaction"
    trigger = (b"index_select", b"key_cache", b".keys", b"gather", b"compact")
    VALID = (
        Case("rows = table.index_select(0, picked)", given=target()),
        Case("for key in settings.keys():\n    show(key)", given=target()),
        Case("from compatfix_runtime import commit\ncommit(cache, picked)", given=target()),
        Case("keep(other, 3, picked)", given=target() + _HELPER),
    )
    INVALID = (
        Case("keep(cache, start, picked)", "commit(cache, picked)", given=verified() + _HELPER),
        Case("keep(cache, picked=best, past=start)", "commit(cache, best)", given=verified() + _HELPER),
        Case(
            "def keep(kv, past, picked):\n    at = torch.arange(past + 4)\n    at = past + torch.tensor(picked)\n"
            "    for i in range(len(kv.key_cache)):\n"
            "        kv.key_cache[i] = torch.cat([kv.key_cache[i][:, :, :past], kv.key_cache[i][:, :, at]], 2)\n"
            "keep(cache, start, picked)",
            "def keep(kv, past, picked):\n    at = torch.arange(past + 4)\n    at = past + torch.tensor(picked)\n"
            "    for i in range(len(kv.key_cache)):\n"
            "        kv.key_cache[i] = torch.cat([kv.key_cache[i][:, :, :past], kv.key_cache[i][:, :, at]], 2)\n"
            "commit(cache, picked)",
            given="import torch\n" + verified(),
        ),
    )
    UNFIXABLE = (
        Case(_LOOP, given=target(), reason="in place"),
        Case(
            "def keep(kv, picked):\n    for layer in kv.layers:\n"
            "        layer.keys = layer.keys.index_select(-2, picked)\nkeep(cache, picked)",
            given=target(),
            reason="counts its indices",
        ),
        Case("keep(cache, start, picked)", given=target() + _HELPER, reason="select CF202"),
    )

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        site = code.site(node)
        if site is None:
            return None
        for callee in sorted((c for c in site.callees if c.kind in ("function", "method")), key=lambda c: c.name):
            shape = compaction_of(callee, code)
            if shape is None:
                continue
            arguments = {
                name: _argument(node, callee.kind == "method", place, name) for name, place in shape.places.items()
            }
            cache = arguments.get(shape.cache)
            if cache is None or not code.is_target_cache(cache):
                continue
            indices = arguments.get(shape.indices or "")
            if shape.past is None or indices is None:
                return Unfixed(
                    node,
                    f"{callee.name} picks tokens out of the cache, but what it counts its indices from is not clear; "
                    "write commit(cache, indices) with indices counted from the start of the latest forward",
                )
            if not code.is_verified(cache):
                return Unfixed(
                    node, "commit needs a verified forward on this cache: select CF202 (unverified-forward) too"
                )
            return self.replace(node, "$commit({cache}, {indices})", cache=cache, indices=indices)
        return None

    def visit_loop(self, node: ast.For, code: Code) -> Outcome:
        """A loop that picks in place, where the loop itself sees the target's cache and is no helper's."""
        nested = any(isinstance(outer, ast.For) for outer in code.around(node))
        owners = [n.value for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr in ("layers", "key_cache")]
        if nested or not any(code.is_target_cache(owner) for owner in owners) or not selects_stored_keys(node, code):
            return None
        function = code.scope(node)
        parameters = function.parameters
        given = any(value.node in parameters for owner in owners for value in code.values(owner))
        if given and not any(site.scope is function for site in code.roles.target_calls.values()):
            return None  # a helper's loop: what counts is who calls the helper
        return Unfixed(
            node,
            "keys and values are picked in place, and recurrent states are not; "
            "replace the loop by commit(cache, indices) with indices counted from the start of the latest forward",
        )


def _argument(node: ast.Call, bound: bool, place: int, name: str) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    place -= bound
    if 0 <= place < len(node.args) and not any(isinstance(a, ast.Starred) for a in node.args[: place + 1]):
        return node.args[place]
    return None
