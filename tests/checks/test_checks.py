"""Every check on profiles made by hand: first what it leaves alone, then what it finds, and how grave that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from compatfix.checks import ALL_CHECKS, run_checks
from compatfix.codes import CODES
from compatfix.model import Answer, Finding
from compatfix.profiles import (
    CacheProfile,
    CheckpointProfile,
    ClassProfile,
    DraftProfile,
    EndTokens,
    EnvironmentProfile,
    Inspection,
    MemoryItem,
    MemoryPlan,
    Package,
    Quantisation,
    Share,
    TargetProfile,
    TensorMatch,
    TokenizerProfile,
)

NOTED = "model.language_model.model.embed_tokens"


def answer(probe: str, ok: bool | None, text: str = "", value: Any = None, error: str | None = None) -> Answer:
    return Answer(probe, f"{probe}?", text, ok, value=value, error=error)


GOOD = (
    answer("cache_argument", True, value={"argument": "past_key_values", "filled": {"past_key_values": True}}),
    answer("rollback_restores_state", True),
    answer("block_equals_steps", True),
    answer("tree_mask_reaches_every_layer", True),
    answer("hidden_states_layout", True, value={"outside_scale": 1.0, "last_is_post_norm": True}),
    answer("embedding_is_raw", True, value={"scale": 1.0}),
    answer("head_gives_logits", True),
    answer("strategy_is_exact", True, value={"strategy": "mask"}),
)


def class_profile(name: str, embedding: str = "model.embed_tokens", claimed: bool = False) -> ClassProfile:
    return ClassProfile(name, (name,), 9, 9, (name,), embedding, "model.layers", "model.norm", "lm_head", False,
                        {NOTED: claimed}, (NOTED,))  # fmt: skip


TARGET = TargetProfile(
    path="target",
    model_type="some",
    architectures=("SomeLM",),
    class_name="SomeLM",
    classes=(class_profile("SomeLM"),),
    hidden_size=512,
    vocab_size=1000,
    num_layers=36,
    layer_types=(),
    dtype="bfloat16",
    dtype_bytes=2,
    sliding_window=None,
    quantised=None,
    cache=CacheProfile("DynamicCache", {"DynamicLayer": 36}, {"full": 36}, "full"),
    states=None,
    answers=GOOD,
)
DRAFT = DraftProfile(
    path="draft",
    num_layers=5,
    hidden_size=512,
    vocab_size=1000,
    intermediate_size=1024,
    heads=8,
    kv_heads=2,
    head_dim=64,
    block_size=16,
    block_size_at="top",
    mask_token_id=999,
    mask_token_at="dflash_config",
    layer_ids=(1, 9, 17, 25, 33),
    layer_ids_at="dflash_config",
    num_target_layers=36,
    sliding_layers=0,
    sliding_window=None,
    rope_theta=1e6,
    dtype="bfloat16",
    dtype_bytes=2,
    parameters=9,
)
PACKAGES = tuple(
    Package(name, "1.0", True, "slow", "it costs time", f"pip install {name}")
    for name in ("accelerate", "flash-linear-attention", "causal-conv1d", "flash-attn")
)
FINE = Inspection(
    target=TARGET,
    draft=DRAFT,
    environment=EnvironmentProfile("3.11", "2", "5", PACKAGES, ()),
    memory=MemoryPlan(4096, 64, (), (), True, ("it fits",)),
    statements=(),
)


def with_target(**changes: Any) -> Inspection:
    return replace(FINE, target=replace(TARGET, **changes))


def with_answer(*changed: Answer) -> Inspection:
    names = {a.probe for a in changed}
    return with_target(answers=(*(a for a in GOOD if a.probe not in names), *changed))


def with_draft(**changes: Any) -> Inspection:
    return replace(FINE, draft=replace(DRAFT, **changes))


def without_package(name: str, wanted: bool = True) -> Inspection:
    packages = tuple(replace(p, version=None, wanted=wanted) if p.name == name else p for p in PACKAGES)
    return replace(FINE, environment=replace(FINE.environment, packages=packages))


def with_memory(*items: MemoryItem, fits: bool | None = True) -> Inspection:
    return replace(FINE, memory=MemoryPlan(4096, 64, items, (), fits, ("99 GB do not fit in a card",)))


def with_checkpoint(part: str = "checkpoint", **changes: Any) -> Inspection:
    match = replace(TensorMatch("SomeLM", 9), **changes.pop("match", {}))
    profile = replace(CheckpointProfile(part, "safetensors", match=match), **changes)
    return replace(FINE, **{part: profile})  # type: ignore[arg-type]


def with_quantisation(**changes: Any) -> Inspection:
    return replace(FINE, quantisation=Quantisation("fp8", **changes))


def with_tokenizer(draft: Any = None, **changes: Any) -> Inspection:
    fine = TokenizerProfile("target", ("tokenizer.json",), 900, 899, ends=EndTokens((5,), (5,), 5), digest="x")
    return replace(FINE, tokenizer=replace(fine, **changes), draft_tokenizer=draft)


LONG = (MemoryItem("hidden long", "all of them", 21 * 10**9, False), MemoryItem("hidden long needed", "five", 10**9))
WRAPPER = (class_profile("SomeLM"), class_profile("SomeWrapper", "model.language_model.embed_tokens"))

QUIET = {
    "all is well": FINE,
    "no draft": replace(FINE, draft=None),
    "a package that nothing needs": without_package("causal-conv1d", wanted=False),
    "a text model knows nothing of the notes": with_target(classes=(class_profile("SomeLM"),)),
    "a wrapper that has the path": with_target(classes=(*WRAPPER[:1], class_profile("Other", NOTED, claimed=True))),
    "a probe that cannot tell": with_answer(answer("rollback_restores_state", None)),
    "derived ids are not judged": with_draft(layer_ids=(2, 10, 18, 26, 34), layer_ids_at="nowhere"),
    "the last layer before its norm": with_draft(layer_ids=(1, 9, 17, 25, 34)),
    "no window": with_draft(sliding_layers=4, sliding_window=None),
    "block size in both places": with_draft(block_size_at="both"),
    "memory that nobody compared": with_memory(fits=None),
    "a whole checkpoint": with_checkpoint(),
    "vision left out, a tied head stored": with_checkpoint(match={"left_out": {"visual": 3}, "tied_stored": ("a",)}),
    "a tokenizer that fits": with_tokenizer(),
    "a mask token of its own": with_tokenizer(mask_token="<|mask|>", roles={"mask_token": 999}),
    "end tokens that only one names": with_tokenizer(ends=EndTokens((), None, 5)),
    "the same tokenizer twice": with_tokenizer(draft=TokenizerProfile("draft", ("tokenizer.json",), digest="x")),
    "a tokenizer that is not read": with_tokenizer(highest=None, digest=None, draft=TokenizerProfile("draft", ("a",))),
    "short hidden states": with_memory(*(replace(item, bytes=10**9) for item in LONG)),
}

FOUND = {
    "no accelerate": (without_package("accelerate"), "CF001", "warning"),
    "no linear kernels": (without_package("flash-linear-attention"), "CF002", "warning"),
    "no conv kernels": (without_package("causal-conv1d"), "CF003", "warning"),
    "no flash attention": (without_package("flash-attn"), "CF004", "note"),
    "a probe that raised": (with_answer(answer("embedding_is_raw", False, error="KeyError: x")), "CF013", "error"),
    "a path in no class": (with_target(classes=WRAPPER), "CF104", "note"),
    "scaled inside": (with_answer(answer("embedding_is_raw", False, value={"scale": 8.0})), "CF105", "note"),
    "scaled outside": (
        with_answer(answer("hidden_states_layout", True, value={"outside_scale": 12.0})), "CF105", "note"),
    "scaled by the config": (with_target(transforms={"embedding_multiplier": 12.0}), "CF105", "note"),
    "logits capped": (with_answer(answer("head_gives_logits", False, "no: they are capped")), "CF106", "note"),
    "logits capped by the config": (with_target(transforms={"final_logit_softcapping": 30.0}), "CF106", "note"),
    "holes in hidden states": (with_answer(answer("hidden_states_layout", False, "3 for 9 layers")), "CF107", "error"),
    "crop is wrong": (with_answer(answer("rollback_restores_state", False, "no: off by 9")), "CF204", "error"),
    "a block drops the state": (with_answer(answer("block_equals_steps", False, "no: by 9")), "CF205", "error"),
    "windows": (
        with_target(sliding_window=512, cache=CacheProfile("DynamicCache", {}, {"sliding": 5, "full": 1}, "sliding")),
        "CF207", "warning"),
    "a mask is ignored": (with_answer(answer("tree_mask_reaches_every_layer", False, "no: it is")), "CF301", "error"),
    "no strategy": (with_answer(answer("strategy_is_exact", False, "none")), "CF302", "error"),
    "a renamed argument": (
        with_answer(answer("cache_argument", True, value={"argument": "cache", "filled": {"past_key_values": True}})),
        "CF502", "warning"),
    "another hidden size": (with_draft(hidden_size=4096), "CF401", "error"),
    "another vocabulary": (with_draft(vocab_size=5), "CF402", "error"),
    "an id past the end": (with_draft(layer_ids=(1, 9, 36)), "CF403", "error"),
    "a negative id": (with_draft(layer_ids=(-1, 9)), "CF403", "error"),
    "the last layer": (with_draft(layer_ids=(1, 35)), "CF403", "warning"),
    "another depth": (with_draft(num_target_layers=64), "CF404", "error"),
    "ids offset twice": (with_draft(layer_ids=(2, 10, 18, 26, 34)), "CF405", "warning"),
    "no mask token": (with_draft(mask_token_id=None, mask_token_at="nowhere"), "CF406", "error"),
    "a mask token past the end": (with_draft(mask_token_id=1000), "CF406", "error"),
    "block size nested": (with_draft(block_size_at="dflash_config"), "CF407", "warning"),
    "no block size": (with_draft(block_size=None, block_size_at="nowhere"), "CF407", "warning"),
    "sliding draft layers": (with_draft(sliding_layers=4, sliding_window=2048), "CF408", "warning"),
    "no draft at all": (with_draft(missing=("dflash_config",), hidden_size=3), "CF409", "error"),
    "too large": (with_memory(fits=False), "CF610", "note"),
    "all hidden states": (with_memory(*LONG), "CF611", "note"),
    "a shard is gone": (with_checkpoint(problems=("a.safetensors is empty",)), "CF801", "error"),
    "a tensor is missing": (with_checkpoint(match={"missing": ("a", "b", "c", "d")}), "CF802", "error"),
    "a draft's tensor is missing": (with_checkpoint("draft_checkpoint", match={"missing": ("a",)}), "CF802", "error"),
    "another shape": (with_checkpoint(match={"other_shape": (("a", "[1]", "[2]"),)}), "CF803", "error"),
    "a tensor too many": (with_checkpoint(match={"surplus": ("a",)}), "CF804", "warning"),
    "stored twice": (with_checkpoint(remarks=("a is stored in more than one file",)), "CF805", "note"),
    "pickles": (with_checkpoint(form="pickle", pickles=("pytorch_model.bin",), match={}), "CF806", "warning"),
    "other names": (with_checkpoint(form="other", unread=("a.gguf",)), "CF806", "warning"),
    "the library raised": (with_checkpoint(match={"error": "KeyError: x"}), "CF807", "note"),
    "quantised": (with_quantisation(), "CF808", "note"),
    "rotated": (with_quantisation(rotated="R1, R2"), "CF809", "warning"),
    "a quantised state": (with_quantisation(shares=(Share("mixer", 2, 3, recurrent=True),)), "CF810", "warning"),
    "ids without rows": (with_tokenizer(highest=1000), "CF811", "error"),
    "the mask token ends texts": (with_tokenizer(mask_token="<end>", ends=EndTokens((999,))), "CF812", "warning"),
    "the mask token pads": (with_tokenizer(mask_token="<pad>", roles={"pad_token": 999}), "CF812", "warning"),
    "one end token of two": (with_tokenizer(ends=EndTokens((5,), (5, 6), 5)), "CF813", "warning"),
    "another tokenizer": (with_tokenizer(draft=TokenizerProfile("draft", ("a",), digest="y")), "CF814", "error"),
    "a broken tokenizer": (with_tokenizer(problems=("tokenizer.json is not valid JSON",)), "CF815", "error"),
}  # fmt: skip


@pytest.mark.parametrize("case", QUIET)
def test_stays_quiet(case: str) -> None:
    assert run_checks(QUIET[case]) == ()


@pytest.mark.parametrize("case", FOUND)
def test_finds(case: str) -> None:
    inspection, code, level = FOUND[case]
    findings = run_checks(inspection)
    # Of a quantised target it is also said that it is one.
    aside = [finding for finding in findings if finding.code == "CF808" != code]
    assert [(finding.code, finding.level) for finding in findings if finding not in aside] == [(code, level)]
    assert findings[0].message
    assert "\n" not in findings[0].message


def test_every_check_has_a_case() -> None:
    found = {check.__name__ for check in ALL_CHECKS for inspection, _, _ in FOUND.values() if list(check(inspection))}
    assert found == {check.__name__ for check in ALL_CHECKS}


def test_every_code_is_registered() -> None:
    assert {code for _, code, _ in FOUND.values()} <= set(CODES)


def test_the_gravest_comes_first() -> None:
    mixed = replace(with_memory(*LONG), draft=replace(DRAFT, hidden_size=1, block_size_at="dflash_config"))
    assert [finding.level for finding in run_checks(mixed)] == ["error", "warning", "note"]


def test_an_inspection_with_no_answers_is_judged_by_what_was_read() -> None:
    findings = run_checks(with_target(answers=()))
    assert findings == ()


def test_checks_yield_findings_and_nothing_else() -> None:
    for check in ALL_CHECKS:
        produced: Iterator[Finding] = check(FINE)
        assert list(produced) == []
