from __future__ import annotations

import ast

from compatfix.rewrites.cases import draft, target, verified
from compatfix.rewrites.code import Code
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed

_IMPORT = "from transformers import DynamicCache\n"


class BareDynamicCache(Rule):
    """Makes the target's cache without what the target needs to be rolled back.

    ## What it does
    Finds the cache that is handed to the target and makes it with the runtime's `new_cache`. The draft's own cache
    stays: a plain `DynamicCache()` is right for it on every version.

    ## Why it breaks
    A bare `DynamicCache()` on a model with recurrent layers raises: AttributeError (5.2), ValueError (5.5 to 5.12),
    IndexError (5.13 and later). With `config=` it runs, but sliding layers then store their window only, so a rejected
    block cannot be taken back.

    ## Example
        cache = DynamicCache()
        output = target(input_ids, past_key_values=cache)
    ## Use instead
        cache = new_cache(target)
        output = target(input_ids, past_key_values=cache)

    ## Fix safety
    Safe: `new_cache` gives the cache that the target's class asks for, with sliding layers stored in full.
    """

    code = "CF201"
    name = "bare-dynamic-cache"
    trigger = (b"DynamicCache",)
    VALID = (
        Case("draft_cache = DynamicCache()", given=_IMPORT + draft()),
        Case("draft_cache = DynamicCache(config=draft.config)", given=_IMPORT + draft()),
        Case("cache = DynamicCache()", given="from mylib import DynamicCache\n" + target()),
        Case("cache = DynamicCache()\nplain = model(ids, past_key_values=cache)", given=_IMPORT),
        Case("from compatfix_runtime import new_cache\ncache = new_cache(target)", given=target()),
    )
    INVALID = (
        Case("cache = DynamicCache()", "cache = new_cache(target)", given=_IMPORT + target()),
        Case("cache = DynamicCache(config=target.config)", "cache = new_cache(target)", given=_IMPORT + target()),
        Case("cache = DynamicCache()", "cache = new_cache(target)", given=_IMPORT + verified()),
        Case(
            "kv = hf.DynamicCache()", "kv = new_cache(big)", given="import transformers as hf\n" + target("big", "kv")
        ),
        Case(
            "kv = DC()",
            "kv = new_cache(big)",
            given="from transformers import DynamicCache as DC\n" + target("big", "kv"),
        ),
        Case(
            "def make(config):\n    return DynamicCache(config=config)\ncache = make(target.config)",
            "def make(config):\n    return new_cache(config)\ncache = make(target.config)",
            given=_IMPORT + target(),
        ),
        Case(
            "class Loop:\n    def __init__(self, target):\n        self.big = target\n    def run(self, ids):\n"
            "        kv = DynamicCache()\n        return self.big(ids, past_key_values=kv, output_hidden_states=True)",
            "class Loop:\n    def __init__(self, target):\n        self.big = target\n    def run(self, ids):\n"
            "        kv = new_cache(self.big)\n"
            "        return self.big(ids, past_key_values=kv, output_hidden_states=True)",
            given=_IMPORT,
        ),
    )
    UNFIXABLE = (
        Case(
            "def make():\n    return DynamicCache()\ncache = make()\ndef run(target):\n"
            "    return target(ids, past_key_values=cache, output_hidden_states=True).logits",
            given=_IMPORT,
            reason="no name for the target",
        ),
    )

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        made = _dynamic_cache(code.qualified(node.func))
        site = code.site(node)
        if not made or site is None or site.result not in code.roles.target_caches:
            return None
        config = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "config"), None)
        if isinstance(config, ast.Attribute) and code.is_target(config.value):
            return self.replace(node, "$new_cache({target})", target=config.value)
        if isinstance(config, ast.Name) and config.id in {p.arg for p in code.scope(node).parameters}:
            return self.replace(node, "$new_cache({config})", config=config)
        name = code.name_of_target({site.result}, node)
        if name is not None:
            return self.replace(node, f"$new_cache({name})")
        if config is not None and isinstance(config, (ast.Name, ast.Attribute)):
            return self.replace(node, "$new_cache({config})", config=config)
        return Unfixed(
            node,
            "this cache reaches the target, but no name for the target is in reach here; "
            "pass the target in and write new_cache(target)",
        )


def _dynamic_cache(qualified: set[str]) -> bool:
    return any(q.startswith("transformers.") and q.endswith(".DynamicCache") for q in qualified)
