"""Which attention honours a tree mask: implementations that do, that do not and say nothing, and that refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from compatfix.doctor.attention import implementations, try_attention
from compatfix.doctor.facts import EAGER, PLAIN, Attention, Trial
from compatfix.introspect.classes import config_from_dict, resolve
from compatfix.introspect.probes import Bench
from compatfix.introspect.tiny import build_tiny_target

torch.set_num_threads(1)
HYBRID = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}


def bench_of(config: dict[str, Any]) -> Bench:
    full = config_from_dict(config)
    return Bench(build_tiny_target(full), resolve(full).config)


@pytest.fixture(scope="module")
def common() -> Bench:
    return bench_of({"model_type": "qwen3"})


@pytest.fixture
def registered() -> Iterator[dict[str, Any]]:
    """Three implementations of a user's own, registered as transformers lets users do."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def honest(module, query, key, value, attention_mask, **kwargs):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    def blind(module, query, key, value, attention_mask, **kwargs):
        # Causal by itself, as kernels that take no mask are.
        past = key.shape[-2] - query.shape[-2]
        causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(past)[None, None]
        return sdpa_attention_forward(module, query, key, value, causal, **kwargs)

    def picky(module, query, key, value, attention_mask, **kwargs):
        raise NotImplementedError("only masks of two dimensions")

    def narrow(module, query, key, value, attention_mask, **kwargs):
        if query.dtype == torch.float32:
            raise RuntimeError("only fp16 and bf16 are supported")
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    made = {"honest": honest, "blind": blind, "picky": picky, "narrow": narrow}
    for name, function in made.items():
        ALL_ATTENTION_FUNCTIONS.register(name, function)
    yield made
    for name in made:
        del ALL_ATTENTION_FUNCTIONS._global_mapping[name]


def by_form(attention: Attention, name: str) -> dict[str, Trial]:
    return {trial.form: trial for trial in attention.trials if trial.name == name}


def test_eager_and_sdpa_on_full_attention(common: Bench) -> None:
    found = try_attention(common, ("eager", "sdpa"), "sdpa")
    assert (found.class_name, found.reference) == ("Qwen3ForCausalLM", PLAIN)
    states = {(t.name, t.form): t.state for t in found.trials}
    assert states == {
        ("eager", "float"): "right",
        ("eager", "bool"): "wrong",
        ("sdpa", "float"): "right",
        ("sdpa", "bool"): "right",
    }


def test_an_honest_one_is_right(common: Bench, registered: Any) -> None:
    assert {t.state for t in try_attention(common, ("honest",), "sdpa").trials} == {"right"}


def test_one_that_ignores_the_mask_is_accepted_and_wrong(common: Bench, registered: Any) -> None:
    for trial in try_attention(common, ("blind",), "sdpa").trials:
        assert (trial.state, trial.ignored) == ("wrong", True)
        assert "siblings see one another" in trial.text
        assert trial.difference is not None and trial.difference > 0.1


def test_one_that_refuses_is_quoted(common: Bench, registered: Any) -> None:
    for trial in try_attention(common, ("picky",), "sdpa").trials:
        assert (trial.state, trial.text) == ("refused", "NotImplementedError: only masks of two dimensions")


def test_one_that_takes_half_precision_only_is_tried_in_it(common: Bench, registered: Any) -> None:
    trial = by_form(try_attention(common, ("narrow",), "sdpa"), "narrow")["float"]
    assert (trial.state, trial.dtype) == ("right", "bfloat16")


def test_one_that_is_not_installed_says_so(common: Bench) -> None:
    for trial in try_attention(common, ("flash_attention_2",), "sdpa").trials:
        assert trial.state == "not installed"


@pytest.mark.filterwarnings("ignore:flex_attention called", "ignore:_compile flag")
def test_one_that_compiles_is_run_without(common: Bench) -> None:
    before = torch.compile
    trials = by_form(try_attention(common, ("flex_attention",), "sdpa"), "flex_attention")
    assert (trials["float"].state, trials["float"].uncompiled) == ("right", True)
    assert trials["bool"].state == "wrong"
    assert torch.compile is before


def test_the_model_is_left_with_eager_whatever_happened(common: Bench, registered: Any) -> None:
    try_attention(common, ("picky",), "sdpa")
    assert common.model.config._attn_implementation == "eager"


def test_windows_want_a_mask_for_each_kind_of_layer() -> None:
    config = {"model_type": "gemma3_text", "vocab_size": 4096}
    found = try_attention(bench_of(config), ("eager", "sdpa"), "sdpa")
    assert found.reference == PLAIN
    assert {t.state for t in found.trials if t.form == "float"} == {"right"}


def test_recurrent_layers_do_not_hide_what_attention_does(registered: Any) -> None:
    found = try_attention(bench_of(HYBRID), ("eager", "sdpa", "blind"), "sdpa")
    assert found.reference == EAGER
    states = {t.name: t.state for t in found.trials if t.form == "float"}
    assert states == {"eager": "right", "sdpa": "right", "blind": "wrong"}


def test_a_target_without_attention_has_no_reference() -> None:
    found = try_attention(bench_of({"model_type": "mamba", "num_hidden_layers": 2}), ("eager",), "eager")
    assert (found.reference, found.trials) == (None, ())


def test_registered_ones_are_tried_unasked_and_named_ones_too(registered: Any) -> None:
    names = implementations(("kernels-community/flash-attn",))
    assert names[:2] == ("eager", "sdpa")
    assert {"blind", "flash_attention_3", "kernels-community/flash-attn"} <= set(names)
