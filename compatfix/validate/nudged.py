"""What rounding alone can do to a model: plain forwards with elements of each layer's output moved by one step of it.

A choice that is nearly even (between experts, above all) falls otherwise once in hundreds of tokens, and the logits
leap where it does. Noise measured on some texts need not hold such a token; whether a token is one can be asked of the
model: elements of the embeddings and of each layer's output, drawn at random, are moved to a neighbour in the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.introspect.skeleton import decoder_layers_path
from compatfix.validate.devices import input_device
from compatfix.validate.plain import uncached, uncached_rows

# Plain decoding that rounds otherwise is about as far off as with one element in sixteen moved (docs/trust.md).
MOVED = 1 / 16
DRAWS, AT_ONCE = 64, 16
# The rest of a leap is rounding, which other nudges have otherwise.
SHARE = 0.5
JUST = 1.5


def leaps(target: nn.Module, text: Sequence[int], seen: Tensor, distance: float, allowed: float) -> bool:
    """Whether rounding alone explains that the logits behind `text` are `seen` (V,), `distance` off and not `allowed`.

    A nudged forward must come near them, to half the distance: the other expert's logits are a certain point, and a
    fault is another. Just beyond what is allowed it is enough that the model moves by half as much.
    """
    seen, near = seen.to(input_device(target)), SHARE * distance
    plain = uncached(target, text).logits[-1]
    just = distance <= JUST * allowed
    return any(
        float((logits - seen).abs().max()) <= near or (just and float((logits - plain).abs().max()) >= near)
        for logits in nudged_logits(target, text)
    )


def may_choose(target: nn.Module, text: Sequence[int], token: int, behind: float) -> bool:
    """Whether rounding alone can bring `token` to within `behind` of the best one behind `text`."""
    return any(float(logits.max() - logits[token]) <= behind for logits in nudged_logits(target, text))


def nudged_logits(target: nn.Module, text: Sequence[int]) -> Iterator[Tensor]:
    """(V,) behind `text`, once for each of DRAWS plain forwards with nudges of their own."""
    for draw in range(0, DRAWS, AT_ONCE):
        with _nudged(target, draw):
            yield from (row.logits[-1] for row in uncached_rows(target, [list(text)] * AT_ONCE))


@contextmanager
def _nudged(target: nn.Module, seed: int) -> Iterator[None]:
    path = decoder_layers_path(target)
    layers: Any = () if path is None else target.get_submodule(path)
    generator = torch.Generator().manual_seed(seed)

    def nudge(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (_moved(output[0], generator), *output[1:])
        return _moved(output, generator)

    embeddings: nn.Module = target.get_input_embeddings()  # type: ignore[operator]
    handles = [module.register_forward_hook(nudge) for module in (embeddings, *layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _moved(value: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(value.shape, generator=generator).to(value.device)
    steps = torch.where(drawn < MOVED / 2, -1.0, torch.where(drawn < MOVED, 1.0, 0.0))
    return (value.float() * (1 + torch.finfo(value.dtype).eps * steps)).to(value.dtype)
