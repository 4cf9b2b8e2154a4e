"""The draft's side: its config, its masks, its cache, and what stands between its states and its logits."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import compatfix.runtime as runtime
from compatfix.runtime.draft import Sight, draft_mask, sights_of

from . import drafts, tiny

CONTEXT, WINDOW, BLOCK = 12, 6, drafts.BLOCK


def drafted(draft: Any, given: dict[str, torch.Tensor], **more: Any) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = runtime.draft_forward(draft, **given, **more)
    return output


def touched(draft: Any, name: str, place: int, context: int = CONTEXT) -> list[bool]:
    """For each token of the block, whether its output changes when one of the draft's inputs changes at `place`."""
    given = drafts.inputs(context)
    before = drafted(draft, given)
    changed = {**given, name: given[name].clone()}
    changed[name][:, place] += 3
    after = drafted(draft, changed)
    return [bool((after[0, row] - before[0, row]).abs().max() > 1e-5) for row in range(BLOCK)]


# -- the config

PLACES: dict[str, Any] = {
    "at the top": {"block_size": 7},
    "nested": {"dflash_config": {"block_size": 7}},
    "nested goes first": {"block_size": 16, "dflash_config": {"block_size": 7}},
    "in a text config": {"text_config": {"block_size": 7}},
    "nested in a text config": {"text_config": {"dflash_config": {"block_size": 7}}},
    "an object": SimpleNamespace(block_size=7),
    "an object in an object": SimpleNamespace(text_config=SimpleNamespace(dflash_config={"block_size": 7})),
    "none at the top": {"block_size": None, "dflash_config": {"block_size": 7}},
}


@pytest.mark.parametrize("place", PLACES)
def test_block_size_is_found_wherever_it_is(place: str) -> None:
    assert runtime.block_size(PLACES[place]) == 7


def test_block_size_of_a_draft_is_that_of_its_config() -> None:
    draft = drafts.build()
    assert runtime.block_size(draft) == runtime.block_size(draft.config) == BLOCK


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no block_size (looked in dflash_config, the top level, text_config)"),
        ({"block_size": "16"}, "no block_size"),
        ({"block_size": True}, "no block_size"),
        ({"dflash_config": {"block_size": 0}}, "block_size is 0 (dflash_config)"),
    ],
    ids=str,
)
def test_no_block_size_is_told_with_the_places(config: Any, message: str) -> None:
    with pytest.raises(runtime.RuntimeRefusal) as raised:
        runtime.block_size(config)
    assert message in str(raised.value)


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
SIGHTS: list[tuple[Any, list[Sight]]] = [
    ({}, []),
    ({"layer_types": ["full_attention"] * 2, "sliding_window": None}, [Sight(None, False)] * 2),
    (SLIDING, [Sight(9, True), Sight(None, False)]),
    ({**SLIDING, "is_causal": False}, [Sight(9, False), Sight(None, False)]),
    ({**SLIDING, "is_causal": True}, [Sight(9, True), Sight(None, True)]),
    ({**SLIDING, "dflash_config": {"is_causal": False}}, [Sight(9, False), Sight(None, False)]),
]


@pytest.mark.parametrize(("config", "expected"), SIGHTS)
def test_what_layers_see_is_what_the_config_says(config: Any, expected: list[Sight]) -> None:
    assert list(sights_of(config)) == expected


# -- between states and logits, and between tokens and states


def draft_with(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


@pytest.mark.parametrize("draft", [None, draft_with(), draft_with(final_logit_softcapping=None, dflash_config={})])
def test_a_config_that_asks_for_nothing_changes_nothing(draft: Any) -> None:
    model = tiny.shared("gemma3")
    hidden = torch.randn(1, 2, tiny.HIDDEN)
    assert torch.equal(runtime.draft_logits(model, hidden, draft), model.lm_head(hidden))
    assert runtime.input_embeddings(model, draft) is model.get_input_embeddings()


@pytest.mark.parametrize("nested", [True, False])
def test_multiplier_then_cap(nested: bool) -> None:
    model, hidden = tiny.shared("qwen3"), torch.randn(1, 2, tiny.HIDDEN)
    fields = {"output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    draft = draft_with(dflash_config=fields) if nested else draft_with(**fields)
    plain = model.lm_head(hidden)[0, 1].tolist()
    expected = [3.0 * math.tanh(0.5 * value / 3.0) for value in plain]
    found = runtime.draft_logits(model, hidden, draft)[0, 1]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert found.abs().max() > 2.5  # so that the cap did something


def test_a_scale_is_that_of_raw_rows() -> None:
    model, ids = tiny.shared("gemma3"), tiny.prompt(5)
    weight = model.get_input_embeddings().weight
    with torch.inference_mode():
        rows = runtime.input_embeddings(model, draft_with(dflash_config={"input_embedding_scale": 2.5}))(ids)
        own = model.get_input_embeddings()(ids)
    assert torch.equal(rows[0, 3], weight[ids[0, 3]] * 2.5)
    assert not torch.allclose(own, rows)  # Gemma scales by another factor, inside the module
    assert "forward" not in vars(model.get_input_embeddings())


def test_a_field_that_is_no_number_is_refused() -> None:
    with pytest.raises(runtime.RuntimeRefusal, match="output_multiplier in the draft's config is 'big'"):
        runtime.draft_logits(tiny.shared("qwen3"), torch.zeros(1, 1, tiny.HIDDEN), draft_with(output_multiplier="big"))


# -- masks


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 50])
def test_a_mask_is_what_its_words_say(window: int | None, causal: bool) -> None:
    queries, keys = 4, 9
    found = draft_mask(Sight(window, causal), queries, keys, torch.float16, torch.device("cpu"))
    assert found.shape == (1, 1, queries, keys) and found.dtype == torch.float16
    for row in range(queries):
        for key in range(keys):
            query = keys - queries + row
            seen = (window is None or abs(query - key) < window) and not (causal and key > query)
            assert found[0, 0, row, key] == (0 if seen else torch.finfo(torch.float16).min), (row, key)


def test_a_draft_that_sees_everything_is_called_as_it_is() -> None:
    draft, given = drafts.build(("full", "full")), drafts.inputs(CONTEXT)
    with torch.inference_mode():
        assert torch.equal(drafted(draft, given), draft(**given))


def test_the_published_draft_sees_beyond_its_window_by_itself() -> None:
    """Without the runtime; should this change, the masks are no longer needed."""
    draft, given = drafts.build(("sliding",)), drafts.inputs(CONTEXT)
    with torch.inference_mode():
        before = draft(**given)
        given["target_hidden"][:, 0] += 3
        assert (draft(**given) - before).abs().max() > 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_sliding_layer_sees_its_window_and_nothing_that_comes_later(attention: str) -> None:
    draft = drafts.build(("sliding",))
    draft.config._attn_implementation = attention
    for place in range(CONTEXT):  # the token of row r stands at CONTEXT + r
        expected = [CONTEXT + row - place < WINDOW for row in range(BLOCK)]
        assert touched(draft, "target_hidden", place) == expected, place
    for place in range(BLOCK):
        assert touched(draft, "noise_embedding", place) == [row >= place for row in range(BLOCK)], place


def test_a_sliding_layer_that_the_config_makes_bidirectional() -> None:
    draft = drafts.build(("sliding",), window=3, is_causal=False)
    for place in range(BLOCK):
        assert touched(draft, "noise_embedding", place) == [abs(row - place) < 3 for row in range(BLOCK)], place
    assert touched(draft, "target_hidden", CONTEXT - 1) == [True, True, False, False]


def test_every_layer_has_its_own_mask() -> None:
    draft = drafts.build(("sliding", "full"))
    assert touched(draft, "target_hidden", 0) == [True] * BLOCK  # through the full layer
    causal = drafts.build(("sliding", "full"), is_causal=True)
    assert touched(causal, "noise_embedding", 2) == [False, False, True, True]


def test_a_cached_context_gives_what_the_whole_context_gives() -> None:
    draft, given = drafts.build(("sliding", "full", "sliding")), drafts.inputs(CONTEXT)
    cache = DynamicCache()
    for start, end in ((0, 5), (5, 6), (6, CONTEXT)):
        part = {
            "target_hidden": given["target_hidden"][:, start:end],
            "noise_embedding": given["noise_embedding"],
            "position_ids": torch.arange(start, end + BLOCK)[None],
        }
        output = drafted(draft, part, past_key_values=cache, use_cache=True)
        runtime.crop_to(cache, end)
    torch.testing.assert_close(output, drafted(draft, given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("made", ["by the tree", "by new_cache"])
def test_sliding_layers_of_the_drafts_cache_store_every_token(made: str) -> None:
    draft, given = drafts.build(("sliding", "full"), window=3), drafts.inputs(CONTEXT)
    cache = DynamicCache(config=draft.config) if made == "by the tree" else runtime.new_cache(draft)
    drafted(draft, given, past_key_values=cache, use_cache=True)
    assert [layer.keys.shape[-2] for layer in cache.layers] == [CONTEXT + BLOCK] * 2
    runtime.crop_to(cache, CONTEXT)
    once = [layer.keys.clone() for layer in cache.layers]
    other = drafts.inputs(CONTEXT, seed=2)
    again = {"target_hidden": other["target_hidden"][:, :2], "noise_embedding": other["noise_embedding"]}
    again["position_ids"] = torch.arange(CONTEXT, CONTEXT + 2 + BLOCK)[None]
    drafted(draft, again, past_key_values=cache, use_cache=True)
    runtime.crop_to(cache, CONTEXT)
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(cache.layers, once, strict=True))


def test_a_cache_that_the_draft_does_not_use_counts_for_nothing() -> None:
    draft, given, cache = drafts.build(("sliding",)), drafts.inputs(CONTEXT), DynamicCache()
    drafted(draft, drafts.inputs(5, seed=3), past_key_values=cache, use_cache=True)
    expected = drafted(draft, given)
    assert torch.equal(drafted(draft, given, past_key_values=cache), expected)  # the published default
    assert torch.equal(drafted(draft, given, past_key_values=cache, use_cache=False), expected)
    assert cache.get_seq_length() == 5 + BLOCK


def test_drafts_in_two_threads_do_not_disturb_each_other() -> None:
    draft = drafts.build(("sliding", "sliding"))
    sizes = (7, 11, 16)
    expected = {size: drafted(draft, drafts.inputs(size)) for size in sizes}
    wrong: list[int] = []

    def drafting(size: int) -> None:
        for _ in range(5):
            if not torch.equal(drafted(draft, drafts.inputs(size)), expected[size]):
                wrong.append(size)

    threads = [threading.Thread(target=drafting, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_mask_of_the_callers_stays() -> None:
    draft, given = drafts.build(("sliding",)), drafts.inputs(CONTEXT)
    mask = torch.zeros(1, 1, BLOCK, CONTEXT + BLOCK)
    mask[..., CONTEXT:] = torch.finfo(torch.float32).min
    with torch.inference_mode():
        expected = draft(**given, attention_mask=mask)
    assert torch.equal(drafted(draft, given, attention_mask=mask), expected)


def test_modules_are_left_as_found_after_an_exception_too() -> None:
    draft, given = drafts.build(("sliding", "sliding")), drafts.inputs(CONTEXT)
    before = {(name, key): id(value) for name, module in draft.named_modules() for key, value in vars(module).items()}
    drafted(draft, given)
    handle = draft.norm.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        drafted(draft, given)
    handle.remove()
    after = {(name, key): id(value) for name, module in draft.named_modules() for key, value in vars(module).items()}
    assert after == before


def test_attention_that_takes_no_mask_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr("compatfix.runtime.draft._told", set())
    draft = drafts.build(("sliding",))
    given = drafts.inputs(CONTEXT)
    with torch.inference_mode():
        expected = draft(**given)
    calls = 0

    def forward(**arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        assert "attention_mask" not in arguments
        return expected

    monkeypatch.setattr(draft, "forward", forward)
    monkeypatch.setattr(draft.config, "_attn_implementation_internal", "flash_attention_2")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert drafted(draft, given) is expected
    assert calls == 2
    assert len([r for r in caplog.records if "flash_attention_2" in r.getMessage()]) == 1


def test_a_config_that_names_too_few_layers_is_refused() -> None:
    draft = drafts.build(("sliding", "full"))
    draft.config.layer_types = ["sliding_attention"]
    with pytest.raises(runtime.RuntimeRefusal, match="has a layer 1, but its config names 1 layer_types"):
        drafted(draft, drafts.inputs(CONTEXT))


# -- another transformers

ROOT = Path(__file__).parents[2]
ERA = os.environ.get("COMPATFIX_ERA_457") or str(ROOT / ".venv-era" / "4.57.6" / "bin" / "python")
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, transformers
from transformers import DynamicCache
import compatfix.runtime as runtime
from tests.runtime import drafts
torch.set_num_threads(1)
def drafted(draft, given, **more):
    with torch.inference_mode():
        return runtime.draft_forward(draft, **given, **more)
draft, given = drafts.build(("sliding", "full"), window=3), drafts.inputs(12)
whole = drafted(draft, given)
differences = {}
caches = {"bare": DynamicCache(), "config": DynamicCache(config=draft.config), "new": runtime.new_cache(draft)}
for name, cache in caches.items():
    for start, end in ((0, 5), (5, 6), (6, 12)):
        part = {"target_hidden": given["target_hidden"][:, start:end], "noise_embedding": given["noise_embedding"],
                "position_ids": torch.arange(start, end + 4)[None]}
        output = drafted(draft, part, past_key_values=cache, use_cache=True)
        runtime.crop_to(cache, end)
    differences[name] = [float((output - whole).abs().max()), cache.get_seq_length()]
far = {**given, "target_hidden": given["target_hidden"].clone()}
far["target_hidden"][:, 0] += 3
alone = drafts.build(("sliding",), window=3)
seen = float((drafted(alone, far) - drafted(alone, given)).abs().max())
print(json.dumps({"version": transformers.__version__, "differences": differences, "seen": seen}))
"""


@pytest.mark.era
def test_on_the_transformers_of_the_published_code() -> None:
    if not Path(ERA).exists():
        pytest.fail(f"no interpreter with transformers 4.57 at {ERA}: run `make era`", pytrace=False)
    run = subprocess.run([ERA, "-c", PROGRAM, str(ROOT)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["version"].startswith("4.57.")
    assert found["seen"] == 0
    for difference, length in found["differences"].values():
        assert difference < 1e-5
        assert length == CONTEXT


def test_positional_arguments_are_seen_by_their_names() -> None:
    from compatfix.runtime.draft import _named

    class Draft(torch.nn.Module):
        def forward(self, position_ids, noise_embedding=None, *rest, **more):  # type: ignore[no-untyped-def]
            return None

    assert _named(Draft(), (1, 2, 3)) == {"position_ids": 1, "noise_embedding": 2}
    assert _named(Draft(), ()) == {}
