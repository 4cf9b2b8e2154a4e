"""Packages made for a test: broken in every way, and working ones that a tiny model's layers really call."""

from __future__ import annotations

from pathlib import Path

RAISES = "raise ImportError('libcudart.so.12: cannot open shared object file\\nand a second line')\n"
ABORTS = "import os\nos.abort()\n"
HANGS = "import time\ntime.sleep(600)\n"
LEAVES = "raise SystemExit(3)\n"

# The shapes of the real functions; the values are of no matter here.
DELTA_RULE = """
import torch

def _answer(value, key, initial_state, output_final_state):
    batch, _, heads, width = value.shape
    state = initial_state if initial_state is not None else value.new_zeros(batch, heads, key.shape[-1], width).float()
    return value * 0.5, state if output_final_state else None

def chunk_gated_delta_rule(query, key, value, g=None, beta=None, initial_state=None,
                           output_final_state=False, **kwargs):
    return _answer(value, key, initial_state, output_final_state)

def fused_recurrent_gated_delta_rule(query, key, value, g=None, beta=None, initial_state=None,
                                     output_final_state=False, **kwargs):
    return _answer(value, key, initial_state, output_final_state)
"""
NEEDS_A_GPU = """
def chunk_gated_delta_rule(*args, **kwargs):
    raise RuntimeError("Pointer argument cannot be accessed from Triton (cpu tensor?)")

fused_recurrent_gated_delta_rule = chunk_gated_delta_rule
"""


def package(root: Path, name: str, source: str = "") -> Path:
    """`name` may have dots: packages on the way are empty."""
    directory = root
    for part in name.split("."):
        directory = directory / part
        directory.mkdir(exist_ok=True)
        (directory / "__init__.py").touch()
    (directory / "__init__.py").write_text(source)
    return root


def metadata(root: Path, name: str, version: str) -> Path:
    directory = root / f"{name.replace('-', '_')}-{version}.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return root


def linear_attention(root: Path, source: str = DELTA_RULE) -> Path:
    package(root, "fla.ops.gated_delta_rule", source)
    return metadata(root, "flash-linear-attention", "0.4.1")
