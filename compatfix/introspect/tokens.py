"""The target's tokenizer: what its files say, and what the library's apply_chat_template gives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import AutoTokenizer

from compatfix.checkpoint.tokenizer import read_tokenizer, token_text
from compatfix.introspect.words import one_line
from compatfix.profiles import TokenizerProfile


def describe_tokenizer(path: str, config: Mapping[str, Any], mask_token_id: int | None) -> TokenizerProfile | None:
    """None where the directory has no tokenizer."""
    profile = read_tokenizer(path, config)
    if profile is None:
        return None
    text = token_text(path, mask_token_id) if mask_token_id is not None else None
    profile = replace(profile, mask_token=text)
    if not profile.template or profile.problems:
        return profile
    loader: Any = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(path, local_files_only=True)
    except Exception as error:  # whatever the library or its parsers raise
        return replace(profile, problems=(f"the tokenizer does not load: {one_line(error)}",))
    return replace(profile, returns=_returned(tokenizer))


def _returned(tokenizer: Any) -> str | None:
    """The class of what apply_chat_template gives; code of before transformers 5 expects a tensor."""
    try:
        given = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], return_tensors="pt")
    except Exception:  # a template may want more than one message of a user
        return None
    return type(given).__name__
