"""Consumers of hidden states that read only after they have returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import compatfix.runtime as runtime

from . import tiny


@pytest.mark.parametrize(
    "lazy",
    [lambda states: (states[i] for i in (1, 2)), lambda states: map(states.__getitem__, (1, 2)), iter([1, 2])],
    ids=["generator", "map", "iterator of indices"],
)
def test_a_consumer_that_reads_later_gets_what_it_reads(lazy: Any) -> None:
    model = tiny.shared("qwen3")
    for _ in range(2):
        with torch.inference_mode():
            output = runtime.verify(
                model,
                tiny.prompt(5),
                past_key_values=runtime.new_cache(model),
                use_cache=True,
                output_hidden_states=lazy_used(lazy),
            )
        assert output.hidden_states[1] is not None
        assert output.hidden_states[2] is not None


_KEPT: dict[int, Any] = {}


def lazy_used(consumer: Any) -> Any:
    """One UsedBy for all calls, as a loop would keep it."""
    return _KEPT.setdefault(id(consumer), runtime.used_by(consumer))
