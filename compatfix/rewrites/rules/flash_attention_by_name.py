from __future__ import annotations

import ast

from compatfix.rewrites.code import Code
from compatfix.rewrites.rule import Case, Outcome, Rule

_ARGUMENTS = {"attn_implementation", "_attn_implementation"}
_SETTER = "set_attn_implementation"


class FlashAttentionByName(Rule):
    """Asks for FlashAttention by name.

    ## What it does
    Finds "flash_attention_2" (and later ones) where it reaches `attn_implementation`, and lets the runtime choose: that
    implementation where it is installed and the device can run it, else the library's default.

    ## Why it breaks
    `ImportError: … flash_attn must be installed` at load, on every machine without the package or without CUDA.

    ## Example
        AutoModel.from_pretrained(path, attn_implementation="flash_attention_2")
    ## Use instead
        AutoModel.from_pretrained(path, attn_implementation=attention("flash_attention_2"))

    ## Fix safety
    Safe: where FlashAttention works it is still what is used.
    """

    code = "CF602"
    name = "flash-attention-by-name"
    trigger = (b"flash_attention",)
    VALID = (
        "model = load(path, attn_implementation='sdpa')",
        "print('flash_attention_2')",
        "if config._attn_implementation == 'flash_attention_2':\n    mask = None",
        "from compatfix_runtime import attention\nm = load(p, attn_implementation=attention('flash_attention_2'))",
        "from transformers.utils import is_flash_attn_2_available as has\n"
        "m = load(p, attn_implementation='flash_attention_2' if has() else 'sdpa')",
    )
    INVALID = (
        Case(
            "m = load(p, attn_implementation='flash_attention_2')",
            "m = load(p, attn_implementation=attention('flash_attention_2'))",
        ),
        Case(
            'm = load(p, attn_implementation="flash_attention_2" if args.flash else "sdpa")',
            'm = load(p, attn_implementation=attention("flash_attention_2") if args.flash else "sdpa")',
        ),
        Case(
            "kind = 'flash_attention_2' if fast else 'eager'\nm = load(p, attn_implementation=kind)",
            "kind = attention('flash_attention_2') if fast else 'eager'\nm = load(p, attn_implementation=kind)",
        ),
        Case(
            "options = {'attn_implementation': 'flash_attention_3'}\nm = load(p, **options)",
            "options = {'attn_implementation': attention('flash_attention_3')}\nm = load(p, **options)",
        ),
        Case(
            "m.set_attn_implementation('flash_attention_2')",
            "m.set_attn_implementation(attention('flash_attention_2'))",
        ),
    )

    def visit_constant(self, node: ast.Constant, code: Code) -> Outcome:
        if not (isinstance(node.value, str) and node.value.startswith("flash_attention")) or _is_checked(node, code):
            return None
        wanted = {value for value in code.values(node) if value.node is node}
        if not wanted:
            return None
        for call, site in code.flow.calls.items():
            asked = [site.keywords[name] for name in _ARGUMENTS & site.keywords.keys()]
            if isinstance(call.func, ast.Attribute) and call.func.attr == _SETTER:
                asked.extend(site.positional[:1])
            if any(wanted & values for values in asked):
                return self.replace(node, "$attention({kind})", kind=node)
        return None


def _is_checked(node: ast.Constant, code: Code) -> bool:
    """The library's own test for the package decides already."""
    for outer in code.around(node):
        if isinstance(outer, (ast.IfExp, ast.If)):
            for inner in ast.walk(outer.test):
                if isinstance(inner, ast.expr) and any("is_flash_attn" in name for name in code.qualified(inner)):
                    return True
    return False
