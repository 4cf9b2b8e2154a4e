from __future__ import annotations

import ast

from compatfix.rewrites.cases import target
from compatfix.rewrites.code import Code
from compatfix.rewrites.rule import Case, Outcome, Rule

_JOIN = {"torch.cat", "torch.stack", "torch.concat", "torch.concatenate"}


class HiddenStateIndex(Rule):
    """Indexes the target's hidden states by a computed layer without a check.

    ## What it does
    Finds `hidden_states[layer_id + offset]` on what a target returned, where the index is computed, and reads the entry
    through the runtime.

    ## Why it breaks
    Some classes return fewer entries than layers + 1, some versions leave holes (None), and a sharded target returns
    its entries on different devices, which then meet in one `torch.cat`. A wrong layer is never an exception: the draft
    is fed something else and acceptance falls.

    ## Example
        selected = [hidden_states[i + 1] for i in layer_ids]
    ## Use instead
        selected = [hidden_state(hidden_states, i + 1) for i in layer_ids]

    ## Fix safety
    Safe: the same entry, checked for range and holes, on one device.
    """

    code = "CF103"
    name = "hidden-state-index"
    trigger = (b"hidden", b"layer", b"cat(", b"stack(")
    VALID = (
        Case("last = output.hidden_states[-1]", given=target()),
        Case("few = output.hidden_states[1:]", given=target()),
        Case("row = output.hidden_states[2][i]", given=target()),
        Case("rows = [hidden_states[i + 1] for i in picked]"),
        Case("from compatfix_runtime import hidden_state\nx = hidden_state(output.hidden_states, i)", given=target()),
    )
    INVALID = (
        Case(
            "picked = [output.hidden_states[i + 1] for i in ids]",
            "picked = [hidden_state(output.hidden_states, i + 1) for i in ids]",
            given=target(),
        ),
        Case(
            "def join(layers, ids):\n    return [layers[i] for i in ids]\nx = join(output.hidden_states, ids)",
            "def join(layers, ids):\n    return [hidden_state(layers, i) for i in ids]\n"
            "x = join(output.hidden_states, ids)",
            given=target(),
        ),
        Case(
            "import torch\ndef join(states, layer_ids):\n    picked = []\n    for i in layer_ids:\n"
            "        picked.append(states[i + 1])\n    return torch.cat(picked, dim=-1)",
            "import torch\ndef join(states, layer_ids):\n    picked = []\n    for i in layer_ids:\n"
            "        picked.append(hidden_state(states, i + 1))\n    return torch.cat(picked, dim=-1)",
        ),
    )

    def visit_subscript(self, node: ast.Subscript, code: Code) -> Outcome:
        if not code.is_loaded(node) or not _is_computed(node.slice):
            return None
        if code.values(node.value) & code.roles.hidden_states or self._by_use(node, code):
            return self.replace(node, "$hidden_state({states}, {index})", states=node.value, index=node.slice)
        return None

    @staticmethod
    def _by_use(node: ast.Subscript, code: Code) -> bool:
        """A helper that nobody in the tree calls: a parameter indexed by a shifted loop variable, the picks joined."""
        function = code.scope(node)
        index = node.slice
        if function.kind != "function" or not (isinstance(node.value, ast.Name) and isinstance(index, ast.BinOp)):
            return False
        own = {v for v in code.values(node.value) if v.kind == "opaque" and v.scope is function}
        if not own or code.values(node.value) != own:
            return False
        loops = [n for n in code.around(node) if isinstance(n, (ast.For, ast.ListComp, ast.GeneratorExp))]
        over = [g.iter for n in loops for g in ([n] if isinstance(n, ast.For) else n.generators)]
        from_parameter = any(v.scope is function for source in over for v in code.values(source))
        joins = any(isinstance(n, ast.Call) and code.qualified(n.func) & _JOIN for n in ast.walk(function.node))
        return from_parameter and joins


def _is_computed(index: ast.expr) -> bool:
    """One index that is neither a constant, such as -1, nor a slice, nor several of them."""
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return isinstance(index, (ast.Name, ast.BinOp, ast.Call, ast.Attribute, ast.Subscript))
