"""Toggles on stand-ins: what each changes, and what it must leave alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compatfix.diagnose.block import First, Noise, Seen
from compatfix.diagnose.head import unsaid
from compatfix.runtime.draft import Sight
from compatfix.runtime.draft_config import draft_value
from compatfix.runtime.mixers import replaced_forwards

ROWS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]])


def pair(**more: Any) -> Any:
    def token_of(row: Tensor) -> int:
        return int((nn.functional.normalize(ROWS, dim=-1) @ row).argmax())

    bench = SimpleNamespace(head=SimpleNamespace(token_of=token_of))
    return SimpleNamespace(bench=bench, embedded=lambda token, like: ROWS[token].to(like.dtype), **more)


def noise_given(toggle: Any, rows: list[list[float]], following: int = 2) -> list[list[float]]:
    watch: Any = SimpleNamespace(following=lambda: following)
    given = toggle.around_draft(watch, lambda given: given, {"noise_embedding": torch.tensor([rows])})
    changed: list[list[float]] = given["noise_embedding"][0].tolist()
    return changed


@pytest.mark.parametrize("scale", [1.0, 0.5, 10.0])
def test_a_token_put_into_the_block_has_the_scale_of_the_row_it_replaces(scale: float) -> None:
    rows = [[scale, 0.0, 0.0], [0.0, 2 * scale, 0.0], [0.0, 2 * scale, 0.0]]
    assert noise_given(Noise(pair(), 2), rows) == [rows[0], [0.0, 0.0, 4 * scale], [0.0, 0.0, 4 * scale]]
    assert noise_given(First(pair(), None), rows) == [[0.0, 0.0, 4 * scale], *rows[1:]]


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [5.0, 5.0, 5.0]], ids=["nothing", "no token's"])
def test_a_row_that_is_no_embedding_says_nothing_about_scale(row: list[float]) -> None:
    assert noise_given(Noise(pair(), 2), [[1.0, 0.0, 0.0], row, row])[1:] == [[0.0, 0.0, 4.0]] * 2


class Attention(nn.Module):
    layer_idx = 0

    def forward(self, states: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        return attention_mask


class Draft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.config = SimpleNamespace(layer_types=["sliding_attention"], sliding_window=2)


def test_what_the_layers_see_is_toggled_under_the_masks_of_the_runtime() -> None:
    """While the runtime masks, a module's forward is a stand-in that names no attention_mask."""
    draft = Draft()
    own = torch.ones(1)

    def masking(original: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("attention_mask") is None:
                kwargs["attention_mask"] = own
            return original(*args, **kwargs)

        return forward

    given = {"noise_embedding": torch.zeros(1, 2, 3), "target_hidden": torch.zeros(1, 1, 3)}
    whole = Seen(pair(draft=draft), Sight(None, False))
    watch: Any = SimpleNamespace()
    with replaced_forwards({draft.attention: masking}):
        assert draft.attention(given["noise_embedding"]) is own
        seen = whole.around_draft(watch, lambda _: draft.attention(given["noise_embedding"]), given)
    assert seen.tolist() == [[[[0.0] * 3] * 2]]


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(final_logit_softcapping=2.0),
        SimpleNamespace(dflash_config={"final_logit_softcapping": 2.0, "mask_token_id": 1}),
        SimpleNamespace(text_config=SimpleNamespace(final_logit_softcapping=2.0)),
    ],
    ids=["top", "nested", "text"],
)
def test_a_value_of_the_draft_is_unsaid_for_a_while_wherever_it_stands(config: Any) -> None:
    draft: Any = SimpleNamespace(config=config)
    with unsaid(draft, "final_logit_softcapping"):
        assert draft_value(draft.config, "final_logit_softcapping") is None
    assert draft.config is config
    assert draft_value(config, "final_logit_softcapping") == 2.0
