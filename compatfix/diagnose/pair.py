"""The user's own pair, loaded, with what the suspects read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.validate.plain import text_config
from compatfix.validate.weights import WeightsBench

Change = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pair:
    """`tokenizer` is None where the target's directory holds none; `texts` are the prompts before any form."""

    bench: WeightsBench
    target_dir: Path
    draft_dir: Path
    tokenizer: Any
    texts: tuple[str, ...]
    chat: str
    reference_dir: Path | None = None

    @property
    def target(self) -> nn.Module:
        return self.bench.target

    @property
    def draft(self) -> nn.Module:
        return self.bench.draft

    @property
    def config(self) -> Any:
        return text_config(self.bench.target)

    @property
    def embeddings(self) -> nn.Module:
        found: nn.Module = self.target.get_input_embeddings()  # type: ignore[operator]
        return found

    @property
    def head(self) -> nn.Module:
        found: nn.Module = self.target.get_output_embeddings()  # type: ignore[operator]
        return found

    @property
    def embedding_weight(self) -> Tensor:
        return dict(self.embeddings.named_parameters())["weight"].detach()

    @property
    def head_weight(self) -> Tensor:
        return dict(self.head.named_parameters())["weight"].detach()

    def embedded(self, token: int, like: Tensor) -> Tensor:
        """(H,): what the target's embedding module makes of a token."""
        with self.bench.watch.quiet():
            row: Tensor = self.embeddings(torch.tensor([[token]], device=like.device))[0, 0]
        return row.to(like.dtype)


@contextmanager
def head_of_draft(
    pair: Pair, change: Callable[[Tensor, Tensor], Tensor], *, target_too: bool = False
) -> Iterator[None]:
    """While it holds, `change(states, logits)` replaces what the target's head gives to the draft's states.

    A call of the head is the draft's where no forward of the target is under way.
    """
    inside = 0

    def enter(*_: Any) -> None:
        nonlocal inside
        inside += 1

    def leave(*_: Any) -> None:
        nonlocal inside
        inside -= 1

    def changed(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if (inside and not target_too) or not isinstance(output, Tensor):
            return None
        return change(args[0], output)

    handles = [
        pair.target.register_forward_pre_hook(enter),
        pair.target.register_forward_hook(leave, always_call=True),
        pair.head.register_forward_hook(changed),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def swapped(tensors: dict[str, tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Parameters and buffers, each with its stand-in, hold other values for a while; then the old ones, untouched."""
    before = {name: own.data for name, (own, _) in tensors.items()}
    try:
        for own, other in tensors.values():
            own.data = other
        yield
    finally:
        for name, (own, _) in tensors.items():
            own.data = before[name]
