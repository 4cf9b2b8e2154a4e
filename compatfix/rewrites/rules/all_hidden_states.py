from __future__ import annotations

import ast

from compatfix.rewrites.cases import target, verified
from compatfix.rewrites.code import Code
from compatfix.rewrites.consumers import Consumers
from compatfix.rewrites.flow.evaluate import RUNTIME
from compatfix.rewrites.rule import Case, Outcome, Rule

_HELPER = (
    "import torch\ndef join(states, ids):\n    return torch.cat([states[i + 1] for i in ids], dim=-1)\n"
    "from compatfix_runtime import verify\n"
)
_ASKED = "out = verify(target, ids, past_key_values=kv, output_hidden_states="
_READ = "\nfirst = out.logits\nx = "


class AllHiddenStates(Rule):
    """Keeps the hidden states of every layer where a few are read.

    ## What it does
    Finds calls of a target with `output_hidden_states=True` whose hidden states are read by something that can be
    looked at (a helper of the tree that picks entries, or the picks themselves), and hands that reader to the runtime:
    `verify` sees which entries it reads and keeps those. The output's hidden states keep their length and indices, with
    None where nobody reads.

    ## Why it breaks
    A prefill keeps one tensor per layer, all at once: 21.8 GB for 32k tokens of Qwen3.6-27B in bf16, of which a draft
    reads five entries, 1.7 GB. The prompt that fits is several times shorter than it need be.

    ## Example
        output = verify(target, ids, past_key_values=cache, output_hidden_states=True)
        context = extract_context_feature(output.hidden_states, layer_ids)
    ## Use instead
        output = verify(
            target, ids, past_key_values=cache,
            output_hidden_states=used_by(lambda states: extract_context_feature(states, layer_ids)),
        )
        context = extract_context_feature(output.hidden_states, layer_ids)

    ## Fix safety
    Safe: the entries that are read are the same tensors, and where the runtime cannot see what is read, or where the
    target makes it, everything is kept as before. Calls whose output goes where its readers cannot be seen stay as they
    are.
    """

    code = "CF611"
    name = "all-hidden-states"
    trigger = (b"output_hidden_states",)
    VALID = (
        Case("x = output.hidden_states[-1]", given=target()),
        Case(f"{_ASKED}False){_READ}join(out.hidden_states, few)", given=_HELPER),
        Case(f"{_ASKED}True){_READ}torch.stack(out.hidden_states)", given=_HELPER),
        Case(f"{_ASKED}True){_READ}keep(out)\ny = join(out.hidden_states, few)", given=_HELPER),
        Case(f"{_ASKED}True){_READ}unknown(out.hidden_states)\ny = join(out.hidden_states, few)", given=_HELPER),
        Case(f"few = [1]\n{_ASKED}True)\nfew = [2]{_READ}join(out.hidden_states, few)", given=_HELPER),
        Case(f"{_ASKED}True){_READ}0\nfor i in few:\n    x += out.hidden_states[i]", given=_HELPER),
        Case(
            "def run(target, ids, kv):\n"
            "    return verify(target, ids, past_key_values=kv, output_hidden_states=True)\n"
            "out = run(big, ids, kv)\ny = join(out.hidden_states, few)",
            given=_HELPER,
        ),
        Case(
            "def pick(states):\n    print(len(states))\n    return states[1]\n"
            f"{_ASKED}True){_READ}pick(out.hidden_states)",
            given=_HELPER,
        ),
        Case(
            "def pick(states):\n    if states[0].max() > 1:\n        return states[1]\n    return states[2]\n"
            f"{_ASKED}True){_READ}pick(out.hidden_states)",
            given=_HELPER,
        ),
        Case("layers = target(ids, output_hidden_states=True).hidden_states[2]", given=verified()),
    )
    INVALID = (
        Case(
            f"few = [1, 3]\n{_ASKED}True){_READ}join(out.hidden_states, few)",
            f"few = [1, 3]\n{_ASKED}used_by(lambda states: join(states, few))){_READ}join(out.hidden_states, few)",
            given=_HELPER,
        ),
        Case(
            f"{_ASKED}block_size > 1){_READ}join(out.hidden_states, ids=draft.layer_ids)[:, :4]",
            f"{_ASKED}block_size > 1 and used_by(lambda states: join(states, ids=draft.layer_ids)))"
            f"{_READ}join(out.hidden_states, ids=draft.layer_ids)[:, :4]",
            given=_HELPER,
        ),
        Case(
            f"{_ASKED}True){_READ}torch.cat([out.hidden_states[i] for i in few], dim=-1)\ny = out.hidden_states[0]",
            f"{_ASKED}used_by(lambda states: ([states[i] for i in few], states[0])))"
            f"{_READ}torch.cat([out.hidden_states[i] for i in few], dim=-1)\ny = out.hidden_states[0]",
            given=_HELPER,
        ),
        Case(
            f"{_ASKED}True){_READ}torch.cat(tuple(out['hidden_states'][i] for i in few))",
            f"{_ASKED}used_by(lambda states: [states[i] for i in few]))"
            f"{_READ}torch.cat(tuple(out['hidden_states'][i] for i in few))",
            given=_HELPER,
        ),
        Case(
            f"{_ASKED}True)\nlayers = out.hidden_states\nassert len(layers) > 2{_READ}layers[-2]",
            f"{_ASKED}used_by(lambda states: states[-2]))\nlayers = out.hidden_states\nassert len(layers) > 2"
            f"{_READ}layers[-2]",
            given=_HELPER,
        ),
        Case(
            "class Loop:\n    def features(self, states):\n        picked = []\n        for i in self.few:\n"
            "            picked.append(states[i + 1])\n        return torch.cat(picked, dim=-1)\n"
            "    def run(self, ids, kv):\n"
            "        out = verify(self.lm, ids, past_key_values=kv, output_hidden_states=True)\n"
            "        return out.logits, self.features(out.hidden_states)",
            "class Loop:\n    def features(self, states):\n        picked = []\n        for i in self.few:\n"
            "            picked.append(states[i + 1])\n        return torch.cat(picked, dim=-1)\n"
            "    def run(self, ids, kv):\n"
            "        out = verify(self.lm, ids, past_key_values=kv, "
            "output_hidden_states=used_by(lambda states: self.features(states)))\n"
            "        return out.logits, self.features(out.hidden_states)",
            given=_HELPER,
        ),
    )

    def __init__(self) -> None:
        self._consumers: Consumers | None = None

    def visit(self, node: ast.AST, code: Code) -> Outcome:
        call = _call_that_asks(node, code)
        if call is None or not isinstance(node, ast.expr) or not self._is_verified(call, code):
            return None
        if self._consumers is None:
            self._consumers = Consumers(code.flow)
        readers = self._consumers.of(call, code)
        if not readers or any(mark in source for source in readers for mark in "{$"):
            return None
        body = next(iter(readers)) if len(readers) == 1 else f"({', '.join(readers)})"
        used = f"$used_by(lambda states: {body})"
        if isinstance(node, ast.Constant):
            return self.replace(node, used)
        asked = "({asked})" if isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda)) else "{asked}"
        return self.replace(node, f"{asked} and {used}", asked=node)

    @staticmethod
    def _is_verified(call: ast.Call, code: Code) -> bool:
        return "CF202" in code.selected or f"{RUNTIME}.verify" in code.qualified(call.func)


def _call_that_asks(node: ast.AST, code: Code) -> ast.Call | None:
    """The call of a target in which `node` is what `output_hidden_states` is given, and may be true."""
    keyword = code.parent(node)
    if not isinstance(keyword, ast.keyword) or keyword.arg != "output_hidden_states":
        return None
    if isinstance(node, (ast.List, ast.Tuple, ast.ListComp)) or (
        isinstance(node, ast.Constant) and node.value is not True
    ):
        return None
    if any(f"{RUNTIME}.used_by" in code.qualified(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)):
        return None
    call = code.parent(keyword)
    return call if isinstance(call, ast.Call) and call in code.roles.target_calls else None
