"""Which stored tensors a slice takes, and what they are called there."""

from __future__ import annotations

import pytest

from compatfix.checkpoint.layers import tensors_of_layers

OUTSIDE = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def of(prefix: str, depth: int, *rests: str) -> list[str]:
    return [f"{prefix}.{i}.{rest}" for i in range(depth) for rest in rests or ("mlp.weight",)]


@pytest.mark.parametrize("prefix", ["model.layers", "model.language_model.layers", "layers", "transformer.h"])
def test_chosen_layers_move_up_and_the_rest_stays(prefix):
    found = tensors_of_layers([*OUTSIDE, *of(prefix, 8)], [0, 3], 8)
    assert found == {
        **{name: name for name in OUTSIDE},
        f"{prefix}.0.mlp.weight": f"{prefix}.0.mlp.weight",
        f"{prefix}.3.mlp.weight": f"{prefix}.1.mlp.weight",
    }


def test_experts_inside_a_layer_keep_their_numbers():
    names = of("model.layers", 4, "experts.0.up.weight", "experts.1.up.weight")
    assert tensors_of_layers(names, [2], 4) == {
        "model.layers.2.experts.0.up.weight": "model.layers.0.experts.0.up.weight",
        "model.layers.2.experts.1.up.weight": "model.layers.0.experts.1.up.weight",
    }


def test_towers_and_prediction_heads_keep_their_layers():
    others = [*of("model.visual.blocks", 3), *of("mtp.layers", 1)]
    found = tensors_of_layers([*others, *of("model.language_model.layers", 8)], [0, 1], 8)
    assert {name for name in found if name in others} == set(others)
    assert sum(name.startswith("model.language_model.layers") for name in found) == 2


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (of("model.layers", 7), r"\(none\)"),
        ([*of("model.layers", 8), *of("model.visual.blocks", 8)], r"\(model.layers, model.visual.blocks\)"),
    ],
)
def test_what_is_not_one_list_is_refused(names, told):
    with pytest.raises(ValueError, match=f"8 decoder layers are not one numbered list of tensors {told}"):
        tensors_of_layers(names, [0], 8)
