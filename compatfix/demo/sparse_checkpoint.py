"""A model directory of full size that takes no room: true headers, and holes in the place of the tensors' bytes.

    python -m compatfix.demo.sparse_checkpoint OUTPUT --config DIRECTORY [--shard-gb 5]

The tensors are those of the class that `architectures` names, under the names that it saves them by, and a layer for
multi-token prediction where the config has one. Nothing can be loaded from it; everything can be inspected.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import torch
import transformers

from compatfix.introspect.classes import config_from_dict, resolve
from compatfix.introspect.configfile import read_config, text_config
from compatfix.introspect.dtypes import dtype_of
from compatfix.introspect.skeleton import build_skeleton

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
BYTES = {"BF16": 2, "F16": 2, "F32": 4}


def tensors_of(config_directory: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name to dtype and shape, for the class that config.json names first."""
    raw = read_config(config_directory)
    config = config_from_dict(raw)
    names = [name for name in config.architectures or () if hasattr(transformers, name)]
    skeleton = build_skeleton(resolve(config, names[0] if names else "AutoModelForCausalLM"), dtype_of(raw))
    tied = set(getattr(skeleton, "_tied_weights_keys", None) or ()) if config.tie_word_embeddings else set()
    found = {
        name: (NAMES.get(value.dtype, "F32"), tuple(value.shape))
        for name, value in skeleton.state_dict().items()
        if name not in tied
    }
    return {**found, **dict(_prediction_layer(text_config(raw), found))}


def _prediction_layer(
    text: Mapping[str, object], tensors: Tensors
) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """The published layout of multi-token prediction: one more full-attention layer, a projection and three norms."""
    hidden = text.get("hidden_size")
    if not text.get("mtp_num_hidden_layers") or not isinstance(hidden, int):
        return
    yield "mtp.fc.weight", ("BF16", (hidden, 2 * hidden))
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield f"mtp.{name}.weight", ("BF16", (hidden,))
    marks = [name for name in tensors if name.endswith("self_attn.q_proj.weight") and "visual" not in name]
    like = marks[0].removesuffix("self_attn.q_proj.weight") if marks else None
    for name, told in tensors.items():
        if like is not None and name.startswith(like):
            yield f"mtp.layers.0.{name.removeprefix(like)}", told


def write_sparse(directory: Path, tensors: Tensors, shard_bytes: int) -> int:
    """Writes shards and index; returns the bytes that the files claim to hold."""
    directory.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, tuple[str, tuple[int, ...]]]] = [{}]
    filled = 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * BYTES[dtype]
        if shards[-1] and filled + size > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = (dtype, shape)
        filled += size
    where: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        total += _write_shard(directory / file, shard)
        where |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return total


def _write_shard(path: Path, tensors: Tensors) -> int:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m compatfix.demo.sparse_checkpoint", description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--config", type=Path, required=True, help="directory with a config.json")
    parser.add_argument("--shard-gb", type=float, default=5.0)
    options = parser.parse_args()
    tensors = tensors_of(options.config)
    total = write_sparse(options.output, tensors, int(options.shard_gb * 1e9))
    for file in options.config.glob("*.json"):
        shutil.copy(file, options.output / file.name)
    print(f"{options.output}: {len(tensors)} tensors, {total / 1e9:.1f} GB in headers")


if __name__ == "__main__":
    main()
