"""What is read of a tokenizer, a chat template and end tokens."""

from __future__ import annotations

import json

import pytest

from compatfix.checkpoint.tokenizer import read_tokenizer, token_text
from compatfix.introspect.tokens import describe_tokenizer

WORDS = {"hello": 0, "world": 1, "!": 2}
PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
ADDED = [
    {"id": 3, "content": "<|end|>", "special": True, **PLAIN},
    {"id": 4, "content": "<|im_end|>", "special": True, **PLAIN},
    {"id": 6, "content": "<tool>", "special": False, **PLAIN},
]
TOKENIZER = {
    "version": "1.0",
    "added_tokens": ADDED,
    "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "!"},
    "pre_tokenizer": {"type": "Whitespace"},
}
TEMPLATE = "{% if enable_thinking is defined %}think{% endif %}{{ messages[0].content }}"


def made(directory, **files):
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)
    return str(directory)


def test_ids_roles_and_ends(tmp_path):
    settings = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|end|>", "bos_token": None, "unk_token": "gone"}
    place = made(
        tmp_path,
        tokenizer__json=TOKENIZER,
        tokenizer_config__json=settings,
        generation_config__json={"eos_token_id": [4, 3]},
    )
    found = read_tokenizer(place, {"eos_token_id": 3, "text_config": {"eos_token_id": 4}})
    assert (found.tokens, found.highest, found.special) == (6, 6, 2)
    assert found.roles == {"eos_token": 4, "pad_token": 3, "unk_token": None}
    assert (found.ends.config, found.ends.generation, found.ends.tokenizer) == ((4,), (4, 3), 4)
    assert found.ends.all == (3, 4)
    assert found.problems == ()
    assert token_text(place, 6) == "<tool>"
    assert token_text(place, 5) is None


def test_a_vocabulary_of_pairs_is_read_too(tmp_path):
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]}
    found = read_tokenizer(made(tmp_path, tokenizer__json={"model": model}), {})
    assert (found.tokens, found.highest) == (3, 2)


@pytest.mark.parametrize(
    ("template", "switches"),
    [
        (TEMPLATE, ("enable_thinking",)),
        ("{{ reasoning_effort }}", ("reasoning_effort",)),
        ("{{ messages[0]['content'] }}", ()),
        ("{{ '<think>' }}", ()),
    ],
)
def test_thinking_switches_of_a_template(tmp_path, template, switches):
    in_settings = made(tmp_path, tokenizer__json=TOKENIZER, tokenizer_config__json={"chat_template": template})
    assert read_tokenizer(in_settings, {}).switches == switches
    several = {"chat_template": [{"name": "default", "template": template}]}
    assert read_tokenizer(made(tmp_path, tokenizer_config__json=several), {}).switches == switches
    of_its_own = made(tmp_path, tokenizer_config__json={}, chat_template__jinja=template)
    assert (read_tokenizer(of_its_own, {}).template, read_tokenizer(of_its_own, {}).switches) == (True, switches)


def test_a_directory_without_a_tokenizer_has_none(tmp_path):
    assert read_tokenizer(str(tmp_path), {}) is None
    assert read_tokenizer(made(tmp_path, config__json={}) + "/config.json", {}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "3"])
def test_a_broken_file_is_a_problem_and_no_exception(tmp_path, text):
    found = read_tokenizer(made(tmp_path, tokenizer__json=text, tokenizer_config__json=text), {"eos_token_id": "x"})
    assert found.tokens == 0
    assert len(found.problems) == 2


@pytest.mark.parametrize("content", [{"model": 3}, {"model": {"vocab": "x"}, "added_tokens": [3, {"id": "x"}]}, {}])
def test_odd_content_holds_no_tokens(tmp_path, content):
    assert read_tokenizer(made(tmp_path, tokenizer__json=content), {}).tokens == 0


def test_the_library_is_asked_what_a_template_returns(tmp_path):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    place = made(tmp_path, tokenizer__json=TOKENIZER, tokenizer_config__json=settings, config__json={})
    found = describe_tokenizer(place, {}, 4)
    assert found.mask_token == "<|im_end|>"
    assert found.returns == "BatchEncoding"
    broken = {**settings, "chat_template": "{{ raise_exception('no') }}"}
    assert describe_tokenizer(made(tmp_path, tokenizer_config__json=broken), {}, None).returns is None


def test_a_tokenizer_that_does_not_load_is_a_problem(tmp_path):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    bad = {**TOKENIZER, "model": {"type": "NoSuchModel", "vocab": WORDS}}
    found = describe_tokenizer(made(tmp_path, tokenizer__json=bad, tokenizer_config__json=settings), {}, None)
    assert found.returns is None
    assert found.problems[0].startswith("the tokenizer does not load: ")
