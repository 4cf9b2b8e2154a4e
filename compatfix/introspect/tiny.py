"""Tiny random models of a target's own class, and draft configs that fit them.

target = build_tiny_target(read_config(path), "AutoModelForCausalLM", seed=0)
draft = build_tiny_draft_config(read_config(draft_path), target.tiny)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from compatfix.introspect.classes import CAUSAL, NoClass, config_from_dict, resolve
from compatfix.introspect.shrink import VOCAB, Shrunk, shrink_config
from compatfix.introspect.shrink_draft import TinyDraft, shrink_draft
from compatfix.introspect.weights import reinitialise
from compatfix.introspect.words import one_line

# A seed whose text repeats itself hides mistakes; the next one is tried.
SEED_TRIES = 4
SEED_STEP = 1000
DIVERSE_SHARE = 0.6
SAMPLE = 24


class TinyError(Exception):
    """No tiny model could be built; the message says of which class and why."""


@dataclass(frozen=True)
class TinyTarget:
    """A tiny model in eval mode, the class it is of, and how its config came from the real one.

    `seed` and `attn` are what was used: a later seed where the first gave dull text, eager where the class refused.
    """

    model: Any
    class_name: str
    tiny: Shrunk
    seed: int
    attn: str

    @property
    def plain_tokens(self) -> range:
        """Token ids that are neither special nor the reserved mask token."""
        return range(self.tiny.mask_token_id)


def build_tiny_target(
    config: Mapping[str, Any] | Any,
    loader: str = CAUSAL,
    *,
    seed: int = 0,
    dtype: torch.dtype | str = "float32",
    attn: str = "sdpa",
    vocab: int = VOCAB,
    mask_can_be_emitted: bool = False,
) -> TinyTarget:
    """Builds a tiny random model of the class that `loader` gives for `config`, the same one for the same seed.

    Args: `config` is a config.json as a dict, or a library config; `loader` an Auto class or a class name as a tree's
    loader asks for it; `mask_can_be_emitted` leaves the mask token's row in the head (for the test of that fault).
    Raises: TinyError.
    """
    full = config_from_dict(dict(config)) if isinstance(config, Mapping) else config
    resolved = resolve(full, loader)
    try:
        tiny = shrink_config(resolved.config.to_dict(), vocab=vocab)
        small = type(resolved.config).from_dict(_in_float32(tiny.config))
        model, attn = _instantiate(resolved.model_class, small, attn)
    except Exception as error:
        raise TinyError(f"no tiny {resolved.name} could be built: {one_line(error)}") from error
    silent = set(tiny.token_ids.values()) | (set() if mask_can_be_emitted else {tiny.mask_token_id})
    used = _initialise(model, seed, silent, tiny.mask_token_id)
    _forget_special_tokens(model)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return TinyTarget(_cast(model, wanted), resolved.name, replace(tiny, config=small.to_dict()), used, attn)


def build_tiny_draft_config(draft: Mapping[str, Any], tiny: Shrunk, *, mask_token_id: int | None = None) -> TinyDraft:
    """The draft's config shrunk to fit a tiny target; `mask_token_id` overrides the reserved one."""
    return shrink_draft(draft, tiny, mask_token_id=mask_token_id)


def _instantiate(model_class: Any, config: Any, attn: str) -> tuple[Any, str]:
    """The model and its attention; a class that refuses the attention asked for gets eager, which all have."""
    try:
        return model_class._from_config(config, attn_implementation=attn).float(), attn
    except ValueError:
        if attn == "eager":
            raise
        return model_class._from_config(config, attn_implementation="eager").float(), "eager"


def _in_float32(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with every part's dtype set to float32: weights are made in float32 and cast once, at the end."""
    parts = {name: _in_float32(value) if isinstance(value, Mapping) else value for name, value in config.items()}
    return {name: "float32" if name in ("dtype", "torch_dtype") and value else value for name, value in parts.items()}


def _initialise(model: Any, seed: int, silent: set[int], plain: int) -> int:
    """Tries seeds until the text is diverse; returns the one used. The last one stays if none is."""
    model.eval()
    candidates = [seed + SEED_STEP * i for i in range(SEED_TRIES)]
    # In place, and norms are shaken rather than replaced: each try starts from the same state.
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for candidate in candidates:
        model.load_state_dict(initial)
        reinitialise(model, candidate, sorted(silent))
        if _is_diverse(model, candidate, plain):
            return candidate
    return candidates[-1]


def _is_diverse(model: Any, seed: int, plain: int) -> bool:
    """Greedy text of a few random prompts, without a cache: mostly different tokens, in every row."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, plain, (3, 8), generator=generator)
    with torch.inference_mode():
        for _ in range(SAMPLE):
            chosen = model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, chosen], dim=1)
    return all(len(set(row[-SAMPLE:])) >= DIVERSE_SHARE * SAMPLE for row in ids.tolist())


def _forget_special_tokens(model: Any) -> None:
    """Generation must not stop or pad by itself; a caller says what a stop token is."""
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.eos_token_id = generation.bos_token_id = None
        generation.pad_token_id = 0


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """What loading in `dtype` does: everything is cast but the modules that the class keeps in float32."""
    if dtype is torch.float32:
        return model
    keep = tuple(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    model = model.to(dtype)
    for name, parameter in model.named_parameters():
        if any(part in name.split(".") for part in keep):
            parameter.data = parameter.data.float()
    model.config.dtype = dtype
    return model


__all__ = [
    "NoClass",
    "Shrunk",
    "TinyDraft",
    "TinyError",
    "TinyTarget",
    "build_tiny_draft_config",
    "build_tiny_target",
]
