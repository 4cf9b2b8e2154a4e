"""Blocks of tokens to verify, with masks and positions made by hand, and a session that verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

import compatfix.runtime as runtime

from . import tiny

TOLERANCE = 2e-4

CHAIN = tuple(range(-1, 7))
ONE_TOKEN = (-1,)
DEEP_WITH_SIBLINGS = (-1, 0, 0, 1, 1, 3, 3, 5, 5, 7, 7)
# 24 nodes: three children of the root, two each below, and so on; siblings never adjacent to all their cousins.
BUSHY = (-1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 6, 7, 8, 9, 10, 10, 12, 13, 15, 18)
TREES = {"chain": CHAIN, "deep": DEEP_WITH_SIBLINGS, "bushy": BUSHY}


def depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def path_to(parents: Sequence[int], node: int) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def leaves(parents: Sequence[int]) -> list[int]:
    return [node for node in range(len(parents)) if node not in parents]


def mask(parents: Sequence[int], past: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    visible = torch.zeros(len(parents), past + len(parents), dtype=torch.bool)
    visible[:, :past] = True
    for node in range(len(parents)):
        for seen in path_to(parents, node):
            visible[node, past + seen] = True
    if dtype == torch.bool:
        return visible[None, None]
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]


def positions(parents: Sequence[int], past: int) -> torch.Tensor:
    return (past + torch.tensor(depths(parents)))[None]


@cache
def target(kind: str, strategy: str | None = None) -> Any:
    """A target of that kind, verified by that strategy (the runtime's own choice without one)."""
    model = tiny.build(kind)
    runtime.prepare(model, strategy)
    return model


class Session:
    """One generation: a target, a cache with a prefilled prompt, and blocks verified on it."""

    def __init__(self, model: Any, prompt_length: int = 12, seed: int = 1) -> None:
        self.model = model
        self.prompt = tiny.prompt(prompt_length, seed)
        self.cache = runtime.new_cache(model)
        self.start = prompt_length
        with torch.inference_mode():
            self.prefill = runtime.verify(model, self.prompt, past_key_values=self.cache, use_cache=True)

    def verify(self, ids: Sequence[int], parents: Sequence[int], **extra: Any) -> Any:
        start = self.cache.get_seq_length()
        with torch.inference_mode():
            return runtime.verify(
                self.model,
                torch.tensor([list(ids)]),
                position_ids=positions(parents, start),
                attention_mask=mask(parents, start),
                past_key_values=self.cache,
                use_cache=True,
                **extra,
            )

    def verify_chain(self, ids: Sequence[int]) -> Any:
        with torch.inference_mode():
            return runtime.verify(self.model, torch.tensor([list(ids)]), past_key_values=self.cache, use_cache=True)

    def assert_holds(self, ids: Sequence[int]) -> None:
        """Every tensor of the cache is the one that plain decoding of `ids` behind the prompt leaves."""
        assert_same_tensors(self.cache, tiny.decoded(self.model, self.prompt, ids))
        assert self.cache.get_seq_length() == self.start + len(ids)


def assert_same_tensors(one: Any, other: Any, tolerance: float = TOLERANCE) -> None:
    ours, theirs = tiny.tensors(one), tiny.tensors(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape, name
        assert tensor.dtype == theirs[name].dtype, name
        torch.testing.assert_close(
            tensor, theirs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def keep_keys_only(made: Any, start: int, path: Sequence[int]) -> None:
    """A faulty commit: keys and values of `path` behind `start`, states left as they are. By hand."""
    rows = torch.tensor([*range(start), *(start + node for node in path)])
    for layer in made.layers:
        if isinstance(getattr(layer, "keys", None), torch.Tensor) and layer.keys.ndim == 4:
            layer.keys, layer.values = layer.keys[..., rows, :], layer.values[..., rows, :]


def copied(made: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tiny.tensors(made).items()}
