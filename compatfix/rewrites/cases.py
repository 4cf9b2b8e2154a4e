"""Code that comes before the snippets of the rules' cases and says what the names in them are."""

from __future__ import annotations


def cache(name: str = "cache") -> str:
    return f"from transformers import DynamicCache\n{name} = DynamicCache()\n"


def target(name: str = "target", cache: str = "cache") -> str:
    """`name` is verified on `cache` and its hidden states are read: a target."""
    return (
        f"output = {name}(ids, past_key_values={cache}, output_hidden_states=True)\n"
        "logits = output.logits\nlayers = output.hidden_states\n"
    )


def verified(name: str = "target", cache: str = "cache") -> str:
    """The same, already patched."""
    return "from compatfix_runtime import verify\n" + target(name, cache).replace(f"{name}(", f"verify({name}, ", 1)


def draft(name: str = "draft", cache: str = "draft_cache") -> str:
    return f"hidden = {name}(noise_embedding=noise, target_hidden=context, past_key_values={cache})\n"
