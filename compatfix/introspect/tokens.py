"""The target's tokenizer: what its files say, and what the library's apply_chat_template gives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compatfix.checkpoint.tokenizer import read_tokenizer, token_text
from compatfix.profiles import TokenizerProfile


def describe_tokenizer(path: str, config: Mapping[str, Any], mask_token_id: int | None) -> TokenizerProfile | None:
    """None where the directory has no tokenizer."""
    profile = read_tokenizer(path, config)
    if profile is None:
        return None
    text = token_text(path, mask_token_id) if mask_token_id is not None else None
    returns = _returned(path) if profile.template and not profile.problems else None
    return replace(profile, mask_token=text, returns=returns)


def _returned(path: str) -> str | None:
    """The class of what apply_chat_template gives; code of before transformers 5 expects a tensor."""
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(path, local_files_only=True)
        given = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], return_tensors="pt")
    except Exception:  # a template or a tokenizer that does not work here is told when it is used
        return None
    return type(given).__name__
