"""What people write when they follow the error messages: it runs on hybrids, and rejected tokens stay in the state."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from transformers import DynamicCache


def new_cache(target: Any) -> Any:
    config = getattr(target, "config", target)
    cache = DynamicCache(config=config.get_text_config(decoder=True))
    if hasattr(cache, "activate_past_recording"):
        with contextlib.suppress(Exception):  # refused by some cache layers of some versions
            cache.activate_past_recording()
    return cache


def crop_to(cache: Any, length: int) -> None:
    count = int(cache.get_seq_length()) - int(length)
    if count > 0:
        roll_back(cache, count)


def roll_back(cache: Any, count: int) -> None:
    if count > 0:
        cache.crop(-int(count))


def input_embeddings(target: Any, draft: Any = None) -> Any:
    return target.get_input_embeddings()


def draft_logits(target: Any, hidden: torch.Tensor, draft: Any = None) -> torch.Tensor:
    logits: torch.Tensor = target.get_output_embeddings()(hidden)
    return logits


def hidden_state(hidden_states: Any, index: int) -> torch.Tensor:
    state: torch.Tensor = hidden_states[index]
    return state


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def attention(name: str) -> str:
    return "sdpa"
