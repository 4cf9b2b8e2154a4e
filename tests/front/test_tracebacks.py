"""Error texts in the surroundings in which people paste them: what is recognised, what must not be, and how fast."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compatfix.codes import CODES
from compatfix.tracebacks import answer, decoded, text_of
from compatfix.tracebacks.recognise import TABLE

from . import surroundings
from .surroundings import WITH_FRAMES, WITHOUT_FRAMES, Accident

CROP = ("transformers/cache_utils.py", 170, "crop", "raise ValueError(")
TORCH = ("torch/nn/modules/module.py", 1967, "__getattr__", "raise AttributeError(")
CONFIG = ("transformers/configuration_utils.py", 661, "__getattribute__", "return super().__getattribute__(key)")
DISPATCH = ("transformers/modeling_utils.py", 1558, "_flash_attn_import_error", "raise ImportError(")


def missing(owner, name, code="x = y.z", library=None):
    return Accident("AttributeError", f"'{owner}' object has no attribute '{name}'", code, library)


# The number of the public note, the error, and the key that it must get. Those of the second table mean something only
# where they were raised, so they are tried in surroundings with frames alone.
TEXTS = [
    ("1", Accident("ValueError", "Calling `crop` with a positive value (`37`) is not supported. Please use a negative "
     "integer to remove that number of tokens from the cache instead.", "cache.crop(start)", CROP),
     "crop-with-a-length"),
    ("1, warned", Accident("FutureWarning", "Calling `crop` with a positive value is deprecated and will be removed in "
     "version 5.18. Please use a negative integer to remove that number of tokens from the cache instead."),
     "crop-with-a-length-is-deprecated"),
    ("1, keyword", Accident("TypeError", "Cache.crop() got an unexpected keyword argument 'max_length'",
     "cache.crop(max_length=start)"), "crop-by-keyword"),
    ("3, 4.57 to 5.4", missing("DynamicCache", "has_previous_state", "output = target(ids, past_key_values=cache)",
     ("transformers/models/qwen3_next/modeling_qwen3_next.py", 640, "forward", "cache_params.has_previous_state")),
     "bare-cache-older"),
    ("3, 5.5 to 5.12", Accident("ValueError", "`has_previous_state` can only be called on LinearAttention layers, "
     "and the current Cache seem to only contain Attention layers.", "output = target(ids, past_key_values=cache)",
     ("transformers/cache_utils.py", 1113, "has_previous_state", "raise ValueError(")), "bare-cache"),
    ("3, by layer", Accident("ValueError", "You called `has_previous_state` on layer index 0, but this layer is an "
     "Attention layer, which does not support calling it."), "state-of-an-attention-layer"),
    ("4", missing("Qwen3_5DynamicCache", "crop", "past_key_values.crop(start)"), "cache-without-crop"),
    ("4, qwen3_next", missing("Qwen3NextDynamicCache", "crop", "past_key_values.crop(start)"), "cache-without-crop"),
    ("4, conv", missing("Lfm2HybridConvCache", "crop", "past_key_values.crop(start)"), "cache-without-crop"),
    ("4, layers", missing("Qwen3NextDynamicCache", "layers", "for layer in cache.layers:"), "own-cache-has-no-layers"),
    ("8", Accident("RuntimeError", "`crop` was called, but the current layer does not track past states. Call "
     "`activate_past_recording` before `crop` to be able to rollback the cache.", "cache.crop(start)",
     ("transformers/cache_utils.py", 1185, "crop", "raise RuntimeError(")), "crop-on-recurrent-layers"),
    ("8, recording", Accident("RuntimeError", "Linear attention layers can only be cropped by passing a negative "
     "int, to specify how many tokens to remove", "cache.crop(start)"), "crop-needs-a-count"),
    ("14, up to 5.14", Accident("ValueError", "Cannot `crop` a `DynamicSlidingWindowLayer` after it has seen more "
     "tokens than itssliding window (otherwise some states are lost)", "cache.crop(start)"),
     "crop-past-the-window-older"),
    ("14, 5.15 on", Accident("RuntimeError", "`crop` was called, but the current layer does not track past states, "
     "and the sliding window size was already reached. Call `activate_past_recording` before `crop` to be able to "
     "rollback the cache.", "cache.crop(start)", ("transformers/cache_utils.py", 290, "crop", "raise RuntimeError(")),
     "crop-past-the-window"),
    ("17, stateful", Accident("ValueError", "assisted generation is not supported with stateful models, such as "
     "Qwen3NextForCausalLM", "target.generate(ids, assistant_model=draft)"), "assisted-decoding-refuses"),
    ("17, crop", Accident("ValueError", "Assisted decoding requires a cache that can be cropped to restore the states "
     "after draft verification", "target.generate(ids, assistant_model=draft)"), "assisted-decoding-needs-crop"),
    ("18", missing("Qwen3_5Model", "embed_tokens", "noise = target.model.embed_tokens(block)", TORCH),
     "embedding-path"),
    ("18, other classes", missing("Gemma3Model", "embed_tokens", "e = target.model.embed_tokens(x)", TORCH),
     "embedding-path"),
    ("26", missing("Qwen3_5Model", "layers", "for layer in target.model.layers:", TORCH), "layers-path"),
    ("26, head", missing("GPTNeoXForCausalLM", "lm_head", "logits = target.lm_head(hidden)", TORCH), "head-path"),
    ("19", missing("Qwen3_5Config", "num_hidden_layers", "n = target.config.num_hidden_layers", CONFIG),
     "nested-config"),
    ("19, layer types", missing("LlamaConfig", "layer_types", "t = config.layer_types[i]", CONFIG), "nested-config"),
    ("20", missing("Qwen3Config", "block_size", "size = draft.config.block_size", CONFIG), "draft-block-size"),
    ("20, mask", missing("Qwen3Config", "mask_token_id", "mask = draft.config.mask_token_id", CONFIG),
     "draft-mask-token"),
    ("20, ids", missing("Qwen3Config", "target_layer_ids", "ids = config.target_layer_ids", CONFIG), "not-a-draft"),
    ("21", missing("Qwen3Config", "rope_theta", "base = config.rope_theta", CONFIG), "rope-parameters"),
    ("27, accelerate", Accident("ValueError", "Using a `device_map`, `tp_plan`, `torch.device` context manager or "
     "setting `torch.set_default_device(device)` requires `accelerate`. "
     "You can install it with `pip install accelerate`"),
     "accelerate-is-missing"),
    ("27, older", Accident("ImportError", "Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate: `pip "
     "install 'accelerate>=0.26.0'`"), "accelerate-is-missing"),
    ("27, fast path", Accident("UserWarning", "The fast path is not available because one of the required library is "
     "not installed. Falling back to torch implementation."), "fast-path-is-missing"),
    ("27, 5.24", Accident("UserWarning", "`chunk_gated_delta_rule` is falling back to its reference PyTorch "
     "implementation because `flash-linear-attention` is not installed. This is correct but much slower; install it."),
     "reference-kernels"),
    ("27, 5.24, convolution", Accident("UserWarning", "`causal_conv1d_fn` is falling back to its reference PyTorch "
     "implementation because `causal_conv1d` is not installed. This is correct but much slower; install it."),
     "reference-convolution"),
    ("28", Accident("UserWarning", "`torch_dtype` is deprecated! Use `dtype` instead!"), "deprecated-torch-dtype"),
    ("29", Accident("FutureWarning", "`past_key_values` is deprecated and will be removed in version 5.40.0 for "
     "`Qwen3ForCausalLM.forward`. Use `cache` instead."), "renamed-cache-argument-warning"),
    ("29, logged", Accident("UserWarning", "`past_key_values`/`cache_params` are deprecated. Use `cache` instead."),
     "renamed-cache-argument-warning"),
    ("29, refused", Accident("TypeError", "OwnModel.forward() got an unexpected keyword argument 'cache'"),
     "renamed-cache-argument"),
    ("39", Accident("RuntimeError", "flash_attn must be installed because the draft uses it"),
     "flash-attention-is-missing"),
    ("39, 4.57", Accident("ImportError", "FlashAttention2 has been toggled on, but it cannot be used due to the "
     "following error: the package flash_attn seems to be not installed.", "draft = load(path)", DISPATCH),
     "flash-attention-is-missing"),
    ("39, 5.24", Accident("ImportError", "FlashAttention2 has been toggled on, but it cannot be used due to the "
     "following error: the package for FlashAttention2 doesn't seem to be installed.", "draft = load(path)", DISPATCH),
     "flash-attention-is-missing"),
    ("40", Accident("AssertionError", "Torch not compiled with CUDA enabled", "torch.cuda.synchronize()",
     ("torch/cuda/__init__.py", 522, "_lazy_init", "raise AssertionError(message)")), "cuda-by-name"),
    ("40, no driver", Accident("RuntimeError", "Found no NVIDIA driver on your system. Please check that you have an "
     "NVIDIA GPU"), "cuda-by-name"),
    ("41", Accident("NotImplementedError", "\"cumprod_out_mps\" not implemented for 'Bool'"), "operator-is-missing"),
    ("42", Accident("RuntimeError", "Expected all tensors to be on the same device, but found at least two devices, "
     "cuda:0 and cuda:1!"), "tensors-on-two-devices"),
    ("43", Accident("RuntimeError", "mat1 and mat2 must have the same dtype, but got BFloat16 and Float"),
     "dtypes-differ"),
    ("46", Accident("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB."), "out-of-memory"),
    ("52, datasets", Accident("ModuleNotFoundError", "No module named 'loguru'", "from loguru import logger"),
     "missing-module-of-the-tree"),
    ("52, names", Accident("ImportError", "cannot import name 'DFlashDraftModel' from 'dflash' (/venv/dflash.py)"),
     "wrong-module"),
    ("5.0, tuples", Accident("TypeError", "'DynamicCache' object is not subscriptable", "key, value = cache[0]"),
     "cache-as-a-list"),
    ("5.0, legacy", Accident("AttributeError", "type object 'DynamicCache' has no attribute 'from_legacy_cache'"),
     "legacy-cache-is-gone"),
    ("4.57, lists", missing("DynamicCache", "key_cache", "k = cache.key_cache[0]"), "cache-lists-are-gone"),
    ("5.20, names", missing("DynamicCache", "get_max_cache_shape"), "renamed-cache-methods"),
    ("5.5, lengths", Accident("ValueError", "You called `get_seq_length` on layer index 1, but this layer is a "
     "LinearAttentionLayer layer, which does not track sequence length."), "length-of-a-recurrent-layer"),
    ("5.24, update", Accident("TypeError", "OwnCache.update() got an unexpected keyword argument 'kwargs'"),
     "update-takes-other-arguments"),
    ("5.19, rotary", Accident("TypeError",
     "Qwen3RotaryEmbedding.__init__() got an unexpected keyword argument 'device'"),
     "rotary-device"),
    ("5.0, rotary", Accident("TypeError", "apply_rotary_pos_emb() got an unexpected keyword argument 'position_ids'"),
     "rotary-positions"),
    ("5.4, layers", missing("Qwen3DecoderLayer", "attention_type", "layer.attention_type", TORCH), "attention-type"),
    ("5.0, drafts", missing("DFlashDraftModel", "all_tied_weights_keys", "Draft.from_pretrained(path)", TORCH),
     "no-post-init"),
    ("5.0, meta", Accident("NotImplementedError", "Cannot copy out of meta tensor; no data!"), "meta-tensors"),
    ("5.2, types", Accident("ValueError", "The checkpoint you are trying to load has model type `qwen3_5` but "
     "Transformers does not recognize this architecture. This could be because of an issue with the checkpoint."),
     "unknown-model-type"),
    ("5.4, strict", Accident("ValueError", "The `layer_types` entries must be in ('full_attention', 'conv') but got "
     "['mamba']"), "layer-types-are-checked"),
    ("drift", Accident("ImportError", "cannot import name 'HybridCache' from 'transformers.cache_utils' (/v/cache.py)"),
     "name-is-gone"),
    ("remote code", Accident("ValueError", "The repository /models/x contains custom code which must be executed to "
     "correctly load the model."), "remote-code"),
    ("own runtime", Accident("compatfix_runtime.refusal.RuntimeRefusal", "a verified tree is still pending on this "
     "cache: commit or crop it before the next verify"), "runtime-refused"),
]  # fmt: skip
TEXTS_WITH_PLACE = [
    ("3, 5.13 on", Accident("IndexError", "list index out of range", "output = target(ids, past_key_values=cache)",
     ("transformers/cache_utils.py", 1630, "get_conv_state", "layer = self.layers[layer_idx]")), "bare-cache-newer"),
    ("5", missing("NoneType", "device", "rows = rows.to(cache.key_cache[i].device)"), "compaction-of-missing-keys"),
    ("11", missing("dict", "clone", "saved = layer.recurrent_states.clone()"), "state-is-a-dict"),
    ("23", Accident("KeyError", "'shape'", "n = tokenizer.apply_chat_template(chat, return_tensors='pt').shape[1]",
     ("transformers/tokenization_utils_base.py", 302, "__getattr__", "return self.data[item]")),
     "chat-template-returns-an-encoding"),
    ("25", Accident("IndexError", "tuple index out of range", "picked = [hidden_states[i + 1] for i in ids]"),
     "layer-id-out-of-range"),
    ("49", Accident("TypeError", "'NoneType' object is not subscriptable", "x = output.hidden_states[layer + 1]"),
     "hidden-states-are-none"),
    ("mask", Accident("RuntimeError", "The size of tensor a (15) must match the size of tensor b (19) at non-singleton "
     "dimension 3", "output = target(ids, attention_mask=mask)",
     ("transformers/integrations/sdpa_attention.py", 182, "sdpa_attention_forward", "out = attention(query, key)")),
     "mask-and-keys-differ-in-length"),
    ("width", Accident("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (12x160 and 128x64)",
     "x = self.fc(target_hidden)"), "draft-of-another-width"),
    ("output", Accident("TypeError", "DraftOutput.__init__() got an unexpected keyword argument 'cache'",
     "return DraftOutput(logits=x)", ("transformers/utils/generic.py", 462, "__init__", "init(self, *args, **kwargs)")),
     "own-output-class"),
    ("no cache", missing("NoneType", "crop", "past_key_values.crop(start)"), "no-cache-was-returned"),
]  # fmt: skip

name_of = {"ids": lambda value: value.__name__}


def keys(text):
    return [one.known.key for one in answer(text).recognised]


# -- what must stay unrecognised


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("AttributeError: 'Image' object has no attribute 'crop'", "'Image' object has no attribute 'crop'"),
        ("AttributeError: 'ImageCache' object has no attribute 'crop'", None),
        ("AttributeError: 'Foo' object has no attribute 'embed_tokens'", None),
        ("AttributeError: 'Trainer' object has no attribute 'layers'", None),
        ("AttributeError: 'Settings' object has no attribute 'block_size'", None),
        ("AttributeError: 'dict' object has no attribute 'clone'", None),
        ("ValueError: crop must lie inside the image", "crop must lie inside the image"),
        ("ValueError: Calling the crop service with a positive value is not supported", None),
        ("IndexError: list index out of range", None),
        ("KeyError: 'shape'", None),
        ("TypeError: Foo.__init__() got an unexpected keyword argument 'device'", None),
        ("ModuleNotFoundError: No module named 'numpy'", None),
        (
            "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
            None,
        ),
    ],
)
def test_near_misses_are_not_recognised(text, message):
    answered = answer(text)
    assert answered.recognised == ()
    assert len(answered.unknown) == 1
    if message:
        assert answered.unknown[0].message == message


@pytest.mark.parametrize("around", WITH_FRAMES, **name_of)
def test_a_users_own_error_is_not_recognised(around):
    text = around(Accident("ValueError", "the batch must not be empty", "raise ValueError(message)"))
    answered = answer(text)
    assert answered.recognised == ()
    assert "the batch must not be empty" in [one.message for one in answered.unknown]


@pytest.mark.parametrize("around", WITH_FRAMES, **name_of)
@pytest.mark.parametrize(
    "accident",
    [
        Accident("IndexError", "list index out of range", "row = table[number]"),
        missing("NoneType", "device", "where = model.device"),
        missing("dict", "clone", "other = settings.clone()"),
        missing("NoneType", "crop", "picture.crop(box)"),
    ],
    ids=lambda accident: accident.message,
)
def test_general_errors_raised_elsewhere_are_not_recognised(around, accident):
    assert keys(around(accident)) == []


def test_source_that_is_quoted_around_an_error_is_not_the_error():
    """A notebook shows the lines near the one that raised: another branch's message is among them."""
    text = surroundings.notebook(Accident("TypeError", "unsupported operand", "x = a + b"))
    shown = (
        "    100     raise RuntimeError(\n"
        '    101         "`crop` was called, but the current layer does not track past states. Call it before."\n'
    )
    assert keys(text.replace("    100 start = 0\n", shown)) == []
    assert keys('        raise AssertionError("Torch not compiled with CUDA enabled")\nAssertionError: other\n') == []


# -- what must be recognised


@pytest.mark.parametrize("around", WITH_FRAMES + WITHOUT_FRAMES, **name_of)
@pytest.mark.parametrize(("number", "accident", "key"), TEXTS, ids=[number for number, _, _ in TEXTS])
def test_every_text_is_recognised(around, number, accident, key):
    assert keys(around(accident)) == [key]


@pytest.mark.parametrize("around", WITH_FRAMES, **name_of)
@pytest.mark.parametrize(
    ("number", "accident", "key"), TEXTS_WITH_PLACE, ids=[number for number, _, _ in TEXTS_WITH_PLACE]
)
def test_texts_that_need_their_place_are_recognised_there(around, number, accident, key):
    assert keys(around(accident)) == [key]


def test_every_entry_is_tried():
    tried = {key for _, _, key in TEXTS + TEXTS_WITH_PLACE}
    untried = {known.key for known in TABLE} - tried
    assert untried == {
        "cache-is-a-tuple",
        "kernel-package-is-missing",
        "wrapped-model",
        "incomplete-checkpoint",
    }


def test_the_rest_of_the_entries():
    assert keys("AttributeError: 'tuple' object has no attribute 'get_seq_length'") == ["cache-is-a-tuple"]
    assert keys("ModuleNotFoundError: No module named 'fla.ops'") == ["kernel-package-is-missing"]
    assert keys("AttributeError: 'DistributedDataParallel' object has no attribute 'model'") == ["wrapped-model"]
    assert keys("Some weights of Qwen3ForCausalLM were not initialized from the model checkpoint at x") == [
        "incomplete-checkpoint"
    ]


@pytest.mark.parametrize("around", WITH_FRAMES, **name_of)
def test_the_users_own_frame_is_named(around):
    (one,) = answer(around(TEXTS[0][1])).recognised
    assert one.user.file.endswith("ddtree/dflash.py")
    assert (one.user.line, one.user.function) == (102, "dflash_generate")
    assert one.user.code == "cache.crop(start)"
    assert (one.library.file, one.library.line) == ("transformers/cache_utils.py", 170)
    assert "crop(37)" in one.what
    assert one.known.code == "CF203"


def test_a_whole_log_first_cause_first_repeats_counted():
    crop, path = TEXTS[0][1], missing("Qwen3_5Model", "embed_tokens", "x = target.model.embed_tokens(ids)", TORCH)
    own = Accident("ValueError", "the batch must not be empty")
    warning = "[transformers] `torch_dtype` is deprecated! Use `dtype` instead!"
    log = [warning, surroundings.plain(path), surroundings.plain(own), *[surroundings.plain(crop)] * 3]
    answered = answer("\n".join(log))
    assert [(one.known.key, len(one.lines)) for one in answered.recognised] == [
        ("embedding-path", 1),
        ("crop-with-a-length", 3),
        ("deprecated-torch-dtype", 1),
    ]
    assert [one.message for one in answered.unknown] == ["the batch must not be empty"]
    text = text_of(answered)
    assert text.index("CF101 embedding-path (real)") < text.index("CF203 absolute-crop (real, 3 times)")
    assert text.index("CF203") < text.index("deprecated-torch-dtype (cosmetic)")
    assert "not recognised: ValueError: the batch must not be empty" in text


def test_a_log_of_many_errors_stays_on_a_screen():
    log = "\n".join(surroundings.plain(accident) for _, accident, _ in TEXTS[:12])
    assert len(text_of(answer(log)).splitlines()) < 45
    assert text_of(answer(log), verbose=True).count("  versions") > 8


@pytest.mark.parametrize("known", TABLE, ids=lambda known: known.key)
def test_every_entry_says_what_to_do(known):
    assert known.code is None or known.code in CODES
    assert known.select or known.do or known.code, "an entry without any advice"
    assert known.squeezed_needle == "" or known.squeezed_needle.strip()


def test_every_rule_that_is_named_exists():
    from compatfix.options import split_codes

    for known in TABLE:
        if known.select:
            assert split_codes(None, None, known.select)


def test_text_of_any_encoding_is_read():
    line = "AssertionError: Torch not compiled with CUDA enabled\n"
    for data in (line.encode(), line.encode("utf-16"), b"\xef\xbb\xbf" + line.encode(), b"\xff\xfa" + line.encode()):
        assert keys(decoded(data)) == ["cuda-by-name"]


# -- any text at all

PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in f',
        '  File "/a/b',
        "a.py:3: ValueError",
        "    x = y",
        "E   ValueError: x",
        "│ ❱ 3 │ x │",
        "---> 3 x",
        "[rank0]: ",
        "AttributeError: 'X' object has no attribute 'crop'",
        "'",
        "`crop` was called, but",
        "\\n",
        "\x1b[31m",
        "{0}",
        "During handling of the above exception, another exception occurred:",
        "_____ test _____",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=30)), max_size=30), st.sampled_from(["\n", "\r\n", "\r", ""]))
def test_no_text_makes_it_fail(pieces, ends):
    text_of(answer(ends.join(pieces)), verbose=True)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(data):
    answer(decoded(data))


MEGABYTE = 1_000_000
LOGS = {
    "ordinary": ("2026-11-30 21:40:22 INFO bench: step 17 of 40000, loss 3.14, 12 tokens per round\n" * 13_000),
    "one long line": "x" * MEGABYTE,
    "words": "ab " * (MEGABYTE // 3),
    "spaces": "a" + " " * MEGABYTE + "b",
    "quotes": "'" * MEGABYTE,
    "box": "│ " * (MEGABYTE // 2),
    "brackets": "[" * MEGABYTE,
    "paths": '  File "' * (MEGABYTE // 8),
    "tracebacks": surroundings.plain(TEXTS[0][1]) * 2_000,
}


@pytest.mark.parametrize("kind", LOGS)
def test_a_megabyte_takes_less_than_a_second(kind):
    text = LOGS[kind][:MEGABYTE] + "\nAssertionError: Torch not compiled with CUDA enabled\n"
    began = time.process_time()
    recognised = keys(text)
    assert time.process_time() - began < 1.0
    assert "cuda-by-name" in recognised
