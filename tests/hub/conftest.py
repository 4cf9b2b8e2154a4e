"""A hub with a few repositories, and a user whose caches are those of the test."""

from __future__ import annotations

import json
import struct

import pytest
from huggingface_hub import constants

from compatfix.hub.client import Settings
from compatfix.hub.resolve import located

from ..checkpoint.made import INDEX, index, safetensors
from . import server

CONFIG = json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 8}).encode()
A = safetensors({"a.weight": ("BF16", (64, 3))})
B = safetensors({"b.weight": ("F32", (400,)), "b.bias": ("BF16", (4,))})
SHARDS = {
    "config.json": CONFIG,
    "generation_config.json": b'{"eos_token_id": 7}',
    "tokenizer.json": b'{"model": {"vocab": {"a": 0}}}',
    "tokenizer_config.json": b"{}",
    INDEX: index({"a.weight": "a.safetensors", "b.weight": "b.safetensors", "b.bias": "b.safetensors"}),
    "a.safetensors": A,
    "b.safetensors": B,
    "README.md": b"# A model",
    "figures/loss.png": bytes(5000),
}
SINGLE = {"config.json": CONFIG, "model.safetensors": A}
PICKLES = {"config.json": CONFIG, "pytorch_model.bin": bytes(700), "modeling_own.py": b"raise SystemExit\n"}


def header_bytes(data: bytes) -> int:
    """The length and the header of a safetensors file, and no byte of a tensor."""
    return 8 + int(struct.unpack("<Q", data[:8])[0])


@pytest.fixture
def hub(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    # Other tests import the library in offline mode.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with server.running() as running:
        running.repository("org/shards", SHARDS)
        running.repository("org/single", SINGLE)
        running.repository("org/pickles", PICKLES)
        yield running


@pytest.fixture
def user(hub, tmp_path):
    """Asks for a model as the command line does, from caches that are empty at first."""

    def ask(given, *, offline=False, **options):
        settings = Settings(endpoint=hub.url, cache=tmp_path / "hub-cache", offline=offline)
        return located(given, settings=settings, **options)

    ask.hub_cache = tmp_path / "hub-cache"
    return ask
