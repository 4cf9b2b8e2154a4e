"""What can be told of a checkpoint's directory before anything runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from compatfix.errors import UsageError
from compatfix.validate.checkpoint import check_checkpoint

INDEX = "model.safetensors.index.json"


@pytest.fixture
def made(tmp_path):
    """made("target", {file: content}) is a directory with these files."""

    def make(name: str, files: dict[str, str]) -> str:
        directory = tmp_path / name
        directory.mkdir()
        for file, content in files.items():
            (directory / file).write_text(content)
        return str(directory)

    return make


def index(*shards: str) -> str:
    return json.dumps({"weight_map": {f"layer.{i}": shard for i, shard in enumerate(shards)}})


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": "x"},
        {"pytorch_model.bin": "x"},
        {INDEX: index("a.safetensors", "b.safetensors", "a.safetensors"), "a.safetensors": "x", "b.safetensors": "x"},
        # The library takes the single file; what an index beside it says does not count.
        {"model.safetensors": "x", INDEX: index("gone.safetensors")},
    ],
    ids=["single", "bin", "sharded", "stale index"],
)
def test_a_complete_directory_is_accepted(made, files):
    check_checkpoint(made("target", files), made("draft", {"model.safetensors": "x"}))


def test_shards_may_be_links_as_in_a_hub_cache(made, tmp_path):
    (tmp_path / "blob").write_text("x")
    target = made("target", {INDEX: index("a.safetensors")})
    (tmp_path / "target" / "a.safetensors").symlink_to(tmp_path / "blob")
    check_checkpoint(target, made("draft", {"model.safetensors": "x"}))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": "{}"}, "no weights in TARGET: neither .safetensors nor .bin files"),
        (
            {INDEX: index("a.safetensors", "b.safetensors"), "a.safetensors": "x"},
            f"TARGET is incomplete: {INDEX} names b.safetensors, which is not there",
        ),
        (
            {INDEX: index("../draft/model.safetensors")},
            f"TARGET/{INDEX} points outside its directory: ../draft/model.safetensors",
        ),
        ({INDEX: index("/etc/passwd")}, f"TARGET/{INDEX} points outside its directory: /etc/passwd"),
        ({INDEX: "{}", "a.safetensors": "x"}, f"TARGET/{INDEX} has no weight_map, so its shards are not known"),
        ({INDEX: "{"}, f"TARGET/{INDEX} is not valid JSON"),
    ],
    ids=["none", "shard absent", "outside", "absolute", "no map", "no JSON"],
)
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_what_cannot_be_loaded_is_refused_in_one_line(made, files, words, whose):
    other = "draft" if whose == "target" else "target"
    directories = {whose: made(whose, files), other: made(other, {"model.safetensors": "x"})}
    with pytest.raises(UsageError) as refused:
        check_checkpoint(directories["target"], directories["draft"])
    assert str(refused.value).startswith(words.replace("TARGET", directories[whose]))
    assert "\n" not in str(refused.value)


def test_a_draft_is_needed(made):
    with pytest.raises(UsageError, match=r"^real weights need a draft: give its directory with --draft$"):
        check_checkpoint(made("target", {"model.safetensors": "x"}), None)


def test_it_is_told_without_torch():
    code = "import sys, compatfix.validate.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
