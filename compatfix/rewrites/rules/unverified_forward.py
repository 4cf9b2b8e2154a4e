from __future__ import annotations

import ast

from compatfix.rewrites.cases import draft, verified
from compatfix.rewrites.code import Code
from compatfix.rewrites.rule import Case, Outcome, Rule


class UnverifiedForward(Rule):
    """Calls the target directly on its cache.

    ## What it does
    Finds every call of a target with a cache and makes it through the runtime's `verify`, a transparent forward that
    keeps what is needed to take tokens back, and that makes a tree mask reach every layer.

    ## Why it breaks
    A recurrent layer overwrites its state: after a rejected block nothing can restore it, no version of `crop` does.
    A tree mask never reaches such layers, so siblings contaminate one another. Neither raises; the text is wrong and
    accepted length falls to about 1.

    ## Example
        output = target(block_ids, past_key_values=cache)
    ## Use instead
        output = verify(target, block_ids, past_key_values=cache)

    ## Fix safety
    Safe: same arguments, same result. On a model that only has attention it costs nothing.
    """

    code = "CF202"
    name = "unverified-forward"
    trigger = (b"logits", b"output_hidden_states")
    VALID = (
        Case("x = 1", given=verified()),
        Case("output = model(ids, past_key_values=cache)\nlogits = output.logits"),
        Case("logits = model(ids).logits"),
        Case("output = model(ids, output_hidden_states=True)\nlayers = output.hidden_states"),
        Case(draft()),
        Case("text = target.generate(ids, past_key_values=cache)", given=verified()),
    )
    INVALID = (
        Case(
            "out = target(ids, past_key_values=kv, output_hidden_states=True)\nlogits = out.logits",
            "out = verify(target, ids, past_key_values=kv, output_hidden_states=True)\nlogits = out.logits",
        ),
        Case(
            "out = target(\n    ids,\n    past_key_values=kv,\n    output_hidden_states=True,\n)\nlogits = out.logits",
            "out = verify(\n    target,\n    ids,\n    past_key_values=kv,\n    output_hidden_states=True,\n)\n"
            "logits = out.logits",
        ),
        Case(
            "out = m.forward(input_ids=ids, cache=kv)\nkv.crop(n)\nnext_token = out.logits.argmax(-1)",
            "out = verify(m, input_ids=ids, cache=kv)\nkv.crop(n)\nnext_token = out.logits.argmax(-1)",
        ),
        Case(
            "def step(model, **inputs):\n    return model(**inputs)\n"
            "out = step(big, past_key_values=kv, output_hidden_states=True)\nlogits = out.logits",
            "def step(model, **inputs):\n    return verify(model, **inputs)\n"
            "out = step(big, past_key_values=kv, output_hidden_states=True)\nlogits = out.logits",
        ),
        Case(
            "class Loop:\n    def run(self, ids, kv):\n"
            "        return self.lm(ids, past_key_values=kv, output_hidden_states=True).logits",
            "class Loop:\n    def run(self, ids, kv):\n"
            "        return verify(self.lm, ids, past_key_values=kv, output_hidden_states=True).logits",
        ),
    )

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        if node not in code.roles.target_calls:
            return None
        if code.callee(node) is node.func or isinstance(node.func, ast.Attribute):
            return self.call(node, "$verify", code.callee(node))
        return None
