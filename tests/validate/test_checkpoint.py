"""What can be told of a checkpoint's directory before anything runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from compatfix.checkpoint.directory import HEADERS_ONLY
from compatfix.errors import UsageError
from compatfix.validate.checkpoint import check_checkpoint, check_slice
from tests.checkpoint.made import ONE, directory, index

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": ONE},
        {"pytorch_model.bin": b"x"},
        {INDEX: index({"a.weight": "a.safetensors"}), "a.safetensors": ONE},
    ],
    ids=["single", "bin", "sharded"],
)
def test_a_complete_directory_is_accepted(tmp_path, files):
    target, draft = directory(tmp_path / "target", files), directory(tmp_path / "draft", {"model.safetensors": ONE})
    check_checkpoint(str(target), str(draft))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": b"{}"}, "no weights in TARGET: neither .safetensors nor .bin files"),
        (
            {INDEX: index({"a.weight": "a.safetensors", "b": "b.safetensors"}), "a.safetensors": ONE},
            f"TARGET cannot be loaded: {INDEX} names b.safetensors, which is not there",
        ),
        ({INDEX: index({"a": "/etc/passwd"})}, f"TARGET cannot be loaded: {INDEX} points outside its directory"),
        ({"model.safetensors": ONE[:-1]}, "TARGET cannot be loaded: model.safetensors is truncated: 11 bytes"),
    ],
    ids=["none", "shard absent", "outside", "truncated"],
)
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path, files, words, whose):
    other = "draft" if whose == "target" else "target"
    places = {
        whose: str(directory(tmp_path / whose, files)),
        other: str(directory(tmp_path / other, {"model.safetensors": ONE})),
    }
    with pytest.raises(UsageError) as refused:
        check_checkpoint(places["target"], places["draft"])
    assert str(refused.value).startswith(words.replace("TARGET", places[whose]))
    assert "\n" not in str(refused.value)


def test_a_draft_is_needed(tmp_path):
    target = directory(tmp_path, {"model.safetensors": ONE})
    with pytest.raises(UsageError, match=r"^real weights need a draft: give its directory with --draft$"):
        check_checkpoint(str(target), None)


def test_it_is_told_without_torch():
    code = "import sys, compatfix.validate.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_was_not_fetched_from_the_hub_has_no_values_for_a_slice(tmp_path):
    files = {"model.safetensors": ONE, "config.json": b'{"model_type": "qwen3"}', HEADERS_ONLY: b"{}"}
    target = directory(tmp_path, files)
    check_slice(str(target), "random")
    with pytest.raises(UsageError, match=r"^no weights in .*: only their headers were fetched from the hub$"):
        check_slice(str(target), "checkpoint")
