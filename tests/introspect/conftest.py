"""Tiny models and inspections that several tests look at, each built once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from compatfix.introspect.classes import config_from_dict, resolve
from compatfix.introspect.job import run
from compatfix.introspect.probes import Bench, run_probes
from compatfix.introspect.tiny import build_tiny_target

torch.set_num_threads(1)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "targets"
VL = "AutoModelForImageTextToText"


def example(name: str) -> dict[str, Any]:
    return json.loads((EXAMPLES / name / "config.json").read_text())


@pytest.fixture(scope="session")
def examples() -> Path:
    return EXAMPLES


@pytest.fixture(scope="session")
def hybrid() -> Bench:
    config = config_from_dict(example("qwen3.6-27b"))
    return Bench(build_tiny_target(config), resolve(config).config)


@pytest.fixture(scope="session")
def attention_only() -> Bench:
    config = config_from_dict(example("qwen3-8b"))
    return Bench(build_tiny_target(config), resolve(config).config)


@pytest.fixture(scope="session")
def windowed() -> Bench:
    from transformers import Gemma3TextConfig

    config = Gemma3TextConfig(vocab_size=4096)
    return Bench(build_tiny_target(config), config)


@pytest.fixture(scope="session")
def hybrid_answers(hybrid: Bench) -> dict[str, Any]:
    return {answer.probe: answer for answer in run_probes(hybrid)}


@pytest.fixture(scope="session")
def attention_answers(attention_only: Bench) -> dict[str, Any]:
    return {answer.probe: answer for answer in run_probes(attention_only)}


@pytest.fixture(scope="session")
def windowed_answers(windowed: Bench) -> dict[str, Any]:
    return {answer.probe: answer for answer in run_probes(windowed)}


@pytest.fixture(scope="session")
def inspected() -> dict[str, Any]:
    """The job's result for the hybrid example and its draft, as it crosses the pipe."""
    args = {"target": str(EXAMPLES / "qwen3.6-27b"), "draft": str(EXAMPLES / "qwen3.6-27b-dflash")}
    return json.loads(json.dumps(run(args, lambda *_: None)))
