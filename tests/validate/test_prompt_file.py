"""Prompt files: what counts as a prompt, and what is said of a line that does not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner

from compatfix.cli import main
from compatfix.errors import UsageError
from compatfix.validate.prompt_file import read_prompts


def written(tmp_path: Path, content: str | bytes) -> str:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one\ntwo\n", ("one", "two")),
        ("\n  one  \n\n", ("one",)),
        ("\ufeffone\r\ntwo\r\n", ("one", "two")),
        ('"a\\nb"\nplain', ("a\nb", "plain")),
        ('{"prompt": "x", "id": 1}\n{"text": "y"}\n', ("x", "y")),
        ("[INST] hi [/INST]", ("[INST] hi [/INST]",)),
    ],
)
def test_one_prompt_a_line(tmp_path: Path, content: str, expected: tuple[str, ...]) -> None:
    assert read_prompts(written(tmp_path, content)) == expected


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
    assert read_prompts("-") == ("one",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n\n", "no prompts in .*prompts.txt"),
        ('one\n{"prompt": 3}', r"prompts.txt:2: no prompt"),
        ('{"question": "x"}', r"prompts.txt:1: no prompt"),
        ('""', "prompts.txt:1: no prompt"),
        ('"open', "prompts.txt:1: not valid JSON"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_prompts(written(tmp_path, content))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="cannot read nowhere"):
        read_prompts("nowhere")


def test_prompts_need_real_weights(tmp_path: Path) -> None:
    options = ["--target", "examples/targets/qwen3-8b", "--prompt-file", written(tmp_path, "one")]
    result = CliRunner().invoke(main, ["validate", "vendor/ddtree_ref", *options])
    assert result.exit_code == 2
    assert "--prompt-file needs --on weights" in result.output
