"""Suspect: tensors of the draft are missing, random, constant or not finite. Read, with a measured floor beside it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from compatfix.diagnose.pair import Pair, swapped
from compatfix.diagnose.toggle import Read, Suspect, Toggle

QUESTION = "Are all tensors of the draft there, and trained?"
STEP = "complete the draft's checkpoint: load it with output_loading_info=True and compare its keys"
# A matrix drawn from a normal distribution: its spread and the spread of its rows' lengths, within this of expected.
NEAR = 0.02
ROWS_NEAR = 0.35


def suspects(pair: Pair) -> list[Suspect]:
    missing, spoiled, fresh = pair.bench.missing, broken(pair), untrained(pair)
    read = None
    if missing:
        read = Read("certain", f"{len(missing)} tensors are not in the draft's checkpoint and were drawn at random: "
                    f"{_named(missing)}")  # fmt: skip
    elif spoiled:
        read = Read("certain", f"{len(spoiled)} tensors of the draft hold nothing: {_named(spoiled)}")
    elif fresh:
        read = Read(
            "hint", f"{len(fresh)} matrices of the draft look as they are drawn before training: {_named(fresh)}"
        )
    cleared = "" if read else "all tensors are there, finite, and none looks untrained"
    return [Suspect("draft's weights", QUESTION, "CF952", read=read, step=STEP, cleared=cleared)]


def floor(pair: Pair) -> Toggle:
    """The same draft, untrained: what acceptance is worth nothing."""
    return Toggle("an untrained draft", "", around=lambda: _untrained(pair))


def _untrained(pair: Pair) -> AbstractContextManager[None]:
    draft: Any = pair.draft
    torch.manual_seed(pair.bench.seed)
    fresh = type(draft)._from_config(copy.deepcopy(draft.config))
    values = dict(fresh.named_parameters())
    return swapped({name: (own, values[name].data.to(own.device, own.dtype)) for name, own in draft.named_parameters()})


def broken(pair: Pair) -> list[str]:
    """Tensors with values that are not finite, and matrices that are constant."""
    return [
        name
        for name, tensor in pair.draft.named_parameters()
        if not bool(torch.isfinite(tensor).all()) or (tensor.ndim > 1 and bool((tensor == tensor.flatten()[0]).all()))
    ]


def untrained(pair: Pair) -> list[str]:
    """Matrices with the spread of the config's initialiser, in which no row or column stands out."""
    spread = getattr(pair.draft.config, "initializer_range", None)
    return [] if not spread else [name for name, tensor in _matrices(pair) if looks_drawn(tensor, float(spread))]


def looks_drawn(tensor: Tensor, spread: float) -> bool:
    values = tensor.detach().float()
    if abs(float(values.std()) / spread - 1) > NEAR or abs(float(values.mean())) > NEAR * spread * 3:
        return False
    for axis in (0, 1):
        lengths = values.norm(dim=axis)
        expected = (2 * values.shape[axis]) ** -0.5
        if float(lengths.std() / lengths.mean()) > expected * (1 + ROWS_NEAR):
            return False
    return True


def _matrices(pair: Pair) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in pair.draft.named_parameters() if tensor.ndim == 2)


def _named(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
