"""Tiny drafts of the published class, as vendor/ddtree_ref has it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import Qwen3Config

REFERENCE = Path(__file__).parents[2] / "vendor" / "ddtree_ref" / "model"
VOCAB, HIDDEN, BLOCK = 97, 32, 4
NAME = "ddtree_ref_model"


@cache
def module() -> ModuleType:
    """vendor/ddtree_ref/model under a name that clashes with nothing."""
    spec = importlib.util.spec_from_file_location(
        NAME, REFERENCE / "__init__.py", submodule_search_locations=[str(REFERENCE)]
    )
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = made
    spec.loader.exec_module(made)
    return made


def config(kinds: Sequence[str] = ("full",), window: int = 6, **more: Any) -> Any:
    made = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=len(kinds),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        layer_types=[f"{kind}_attention" for kind in kinds],
        use_sliding_window=True,
        sliding_window=window,
        block_size=BLOCK,
        num_target_layers=5,
        dflash_config={"mask_token_id": VOCAB - 1, "target_layer_ids": [1, 3]},
        **more,
    )
    made._attn_implementation = "sdpa"
    return made


def build(kinds: Sequence[str] = ("full",), window: int = 6, **more: Any) -> Any:
    torch.manual_seed(0)
    draft = module().DFlashDraftModel(config(kinds, window, **more)).eval()
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=2 / parameter.shape[-1] ** 0.5)
    return draft


def inputs(context: int, seed: int = 1) -> dict[str, torch.Tensor]:
    """What a draft is given at its first call: `context` tokens of features, and a block behind them."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "target_hidden": torch.randn(1, context, 2 * HIDDEN, generator=generator),
        "noise_embedding": torch.randn(1, BLOCK, HIDDEN, generator=generator),
        "position_ids": torch.arange(context + BLOCK)[None],
    }
