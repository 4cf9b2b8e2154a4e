"""Tiny random targets for the runtime's tests, and plain decoding of them as the independent reference.

Weights are larger than the library's and recurrent states remember for long: at default initialisation the states
decay almost at once and hide corruption.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from . import zoo

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="The fast path is not available")

VOCAB, HIDDEN, WINDOW = zoo.VOCAB, zoo.HIDDEN, zoo.WINDOW

# Which strategies must be lossless on which target; the first is the one that must be chosen.
STRATEGIES = {name: list(kind.strategies) for name, kind in zoo.KINDS.items()}


def build(kind: str, dtype: torch.dtype = torch.float32, seed: int = 0, attention: str | None = None) -> Any:
    """A fresh target of that kind, with the attention implementation that its kind names unless one is given."""
    torch.manual_seed(seed)
    model = _shaken(zoo.KINDS[kind].build(attention), seed).to(dtype).eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


@cache
def shared(kind: str) -> Any:
    """One float32 target of that kind for all tests that leave it as it is."""
    return build(kind)


def _shaken(model: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                uniform = torch.rand(parameter.shape, generator=generator)
                parameter.copy_(torch.log(uniform * 0.15 + 0.005))
            elif name.endswith("dt_bias"):
                parameter.copy_(noise * 0.3 - 1.0)
            elif name.endswith("sinks"):
                parameter.copy_(noise)
            elif parameter.ndim == 2:
                gain = 1.3 if "embed" in name else (3.9 if "lm_head" in name else 1.3) / math.sqrt(parameter.shape[-1])
                parameter.copy_(noise * gain)
            elif parameter.ndim == 3 and parameter.shape[1] > 1:
                # Experts. Larger ones drown what the other layers say, and with it every fault in a state.
                parameter.copy_(noise * 1.3 / math.sqrt(parameter.shape[-1]))
            elif parameter.ndim > 2:
                parameter.copy_(noise * 0.5)
    return model


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(1, VOCAB - 8, (1, length), generator=generator)


def tokens(count: int, seed: int = 2) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB - 8, (count,), generator=generator).tolist()


def full_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """(T, vocabulary) of a plain forward without any cache."""
    with torch.inference_mode():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0]


def own_cache(model: Any) -> Any:
    """The library's own cache for this model, with window layers replaced by hand; not the runtime's."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    module = sys.modules[type(model).__module__]
    if hasattr(module, "MiniMaxCache"):
        return module.MiniMaxCache()
    made = DynamicCache(config=model.config)
    made.layers[:] = [DynamicLayer() if getattr(layer, "is_sliding", False) else layer for layer in made.layers]
    return made


def cached(model: Any, ids: torch.Tensor, made: Any, past: int = 0) -> Any:
    """A plain forward behind `past` tokens of a cache, under the name that this version has for it.

    Positions are told, since not every model counts what its cache holds (Bamba, MiniMax).
    """
    parameters = inspect.signature(model.forward).parameters
    arguments = {"cache" if "cache" in parameters else "past_key_values": made}
    if "position_ids" in parameters:
        arguments["position_ids"] = torch.arange(past, past + ids.shape[1])[None]
    return model(ids, use_cache=True, **arguments)


def decoded(model: Any, prefix: torch.Tensor, path: Sequence[int]) -> Any:
    """The cache that plain decoding leaves: the prefix at once, then `path` one token at a time."""
    made = own_cache(model)
    with torch.inference_mode():
        cached(model, prefix, made)
        for index, token in enumerate(path):
            cached(model, torch.tensor([[token]]), made, prefix.shape[1] + index)
    return made


def greedy(model: Any, prefix: torch.Tensor, count: int) -> list[int]:
    with torch.inference_mode():
        made = own_cache(model)
        logits = cached(model, prefix, made).logits
        out = [int(logits[0, -1].argmax())]
        while len(out) < count:
            past = prefix.shape[1] + len(out) - 1
            logits = cached(model, torch.tensor([[out[-1]]]), made, past).logits
            out.append(int(logits[0, -1].argmax()))
    return out


def tensors(made: Any) -> dict[str, torch.Tensor]:
    """Every tensor of a cache with layers, by name: an own reading, not the runtime's."""
    found: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(made.layers):
        for name in ("keys", "values", "conv_states", "recurrent_states", "indexer_keys"):
            value = getattr(layer, name, None)
            if isinstance(value, torch.Tensor):
                found[f"{index}.{name}"] = value
            elif isinstance(value, dict):
                found.update({f"{index}.{name}.{k}": v for k, v in value.items() if isinstance(v, torch.Tensor)})
    for index, value in enumerate(getattr(made, "linear_cache", [])):
        if isinstance(value, torch.Tensor):
            found[f"{index}.linear_cache"] = value
    return found
