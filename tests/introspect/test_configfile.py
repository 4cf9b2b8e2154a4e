"""Bad input is answered at once, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compatfix.errors import UsageError
from compatfix.introspect.configfile import is_draft, read_config, read_target_config


def model_dir(place: Path, content: bytes | None) -> Path:
    if content is not None:
        (place / "config.json").write_bytes(content)
    return place


def test_reads_a_directory_and_a_file(tmp_path: Path) -> None:
    place = model_dir(tmp_path, b'{"model_type": "llama"}')
    assert read_config(place) == {"model_type": "llama"}
    assert read_config(place / "config.json") == {"model_type": "llama"}


def test_reads_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_config(model_dir(tmp_path, b'\xef\xbb\xbf{"model_type": "llama"}'))["model_type"] == "llama"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "no config.json in", id="no config"),
        pytest.param(b"{", "is not valid JSON", id="broken"),
        pytest.param(b"", "is not valid JSON", id="empty"),
        pytest.param(b"\xff\xfe\x00", "is not UTF-8 text", id="binary"),
        pytest.param(b"[1]", "holds a list", id="not an object"),
        pytest.param(b"[" * 100_000, "nested too deeply", id="bottomless"),
        pytest.param(b"{}", "has no model_type", id="no model type"),
        pytest.param(b'{"model_type": 3}', "has no model_type", id="model type is no text"),
        pytest.param(b'{"model_type": "qwen3", "dflash_config": {}}', "holds a DFlash draft", id="a draft as target"),
    ],
)
def test_refuses_in_one_line(tmp_path: Path, content: bytes | None, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read_target_config(model_dir(tmp_path, content))
    assert "\n" not in str(caught.value)


def test_refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_config(tmp_path / "missing")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "qwen3"}, False),
        ({"model_type": "qwen3", "block_size": 16}, False),
        ({"architectures": ["DFlashDraftModel"]}, True),
        ({"num_target_layers": 36, "block_size": 16}, True),
        ({"dflash_config": {"mask_token_id": 1}}, True),
    ],
)
def test_tells_drafts_from_targets(config: dict[str, object], expected: bool) -> None:
    assert is_draft(config) is expected


def test_front_modules_import_no_torch() -> None:
    modules = "compatfix.profiles, compatfix.checks, compatfix.introspect.configfile, compatfix.introspect.draft"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
