"""A stand-in tree in the published style over a tiny Qwen3, and ways to make it wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

RIGHT = Path(__file__).parent / "trees" / "right"
TARGETS = Path(__file__).resolve().parents[2] / "examples" / "targets"

# name -> (file, line as it is, line as it becomes wrong)
# ruff: noqa: E501
WRONG = {
    "path not kept": ("speculate.py", "        keep(cache, start, path)\n", "        crop(cache, start + len(path))\n"),
    "kept one off": ("speculate.py", "chosen = start + torch.tensor(path)", "chosen = start + torch.tensor(path).clamp(max=1)"),
    "positions off": ("speculate.py", "start + torch.tensor([depths])", "start + 1 + torch.tensor([depths])"),
    "siblings seen": ("speculate.py", "visible[node] |= visible[parent]", "visible[node, :node] = True"),
    "one too many": ("speculate.py", "            return path\n", "            return path + [n for n in range(len(ids)) if parents[n] == path[-1]][:1]\n"),
    "layers off": ("draft.py", "hidden_states[i + 1]", "hidden_states[i]"),
    "draft not cropped": ("draft.py", "    surplus = cache.get_seq_length() - length\n", "    surplus = min(3, cache.get_seq_length() - length)\n"),
    "mask dropped": ("speculate.py", "[:limit]\n", "[:limit]\n    new = [token for token in new if token != mask_token_id]\n"),
    "stop ignored": ("speculate.py", "if token in (stops or ())), len(new))", "if token in (stops or ()) and i == 0), len(new))"),
    "first stop only": ("speculate.py", "if token in (stops or ())), len(new))", "if token in (stops or ())[:1]), len(new))"),
    "stop in prompt": ("speculate.py", "    new = tokens[", "    if stops and set(stops) & set(prompt[0].tolist()):\n        limit = 1\n    new = tokens["),
    "mask in prompt": ("speculate.py", "*prompt[0].tolist(), *new[:end]", "*(t for t in prompt[0].tolist() if t != mask_token_id), *new[:end]"),
    "stops needed": ("speculate.py", "if stops and any(", "if any("),
    "noise not the mask": ("speculate.py", "embeddings()(block)", "embeddings()(block - (block == mask_token_id).long())"),
    "first row masked": ("speculate.py", "embeddings()(block)", "embeddings()(torch.full_like(block, mask_token_id))"),
    "prompt changed": ("speculate.py", "tensor([[*prompt[0].tolist(), *new[:end]]])", "tensor([[0, *prompt[0].tolist()[1:], *new[:end]]])"),
    "first token no stop": ("speculate.py", "enumerate(new) if token in", "enumerate(new) if i and token in"),
    "later stops ignored": ("speculate.py", "if token in (stops or ())), len(new))", "if token in (stops or ()) and i <= block_size), len(new))"),
    "stops behind paths forgotten": ("speculate.py", "lengths.append(len(path))\n", "lengths.append(len(path))\n        stops = [token for token in stops or () if token != said[path[-1]]]\n"),
    "last four stops": ("speculate.py", "    start, lengths = ", "    stops = (stops or [])[-4:]\n    start, lengths = "),
    "first four stops": ("speculate.py", "    start, lengths = ", "    stops = (stops or [])[:4]\n    start, lengths = "),
    "four tokens at least": ("speculate.py", "    start, lengths = ", "    limit = max(limit, 4)\n    start, lengths = "),
    "two tokens at least": ("speculate.py", "    start, lengths = ", "    limit = max(limit, 2)\n    start, lengths = "),
    "lengths scaled": ("speculate.py", "acceptance_lengths=lengths,", "acceptance_lengths=[1.5 * n + 0.25 for n in lengths],"),
    "new tokens doubled": ("speculate.py", '"num_output_tokens": end', '"num_output_tokens": 2 * end'),
    "prompt miscounted": ("speculate.py", '"num_input_tokens": prompt.shape[1]', '"num_input_tokens": prompt.shape[1] + 3'),
    "rounds halved": ("speculate.py", '"decode_rounds": len(lengths)', '"decode_rounds": len(lengths) // 2'),
    "prompt overwritten": ("speculate.py", "    counts = ", "    prompt[0, -1] = mask_token_id\n    counts = "),
    "stops appended": ("speculate.py", "    counts = ", "    stops is None or stops.append(mask_token_id)\n    counts = "),
    "baseline miscounted": ("speculate.py", '"num_output_tokens": end', '"num_output_tokens": end + (block_size == 1)'),
    "acceptance capped": ("speculate.py", "        path = walk(ids, parents, said)\n", "        path = walk(ids, parents, said)[: 2 if lengths else None]\n"),
    "claims more": ("speculate.py", "lengths.append(len(path))", "lengths.append(len(path) + 1)"),
}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def variant(tmp_path: Path) -> Callable[..., Path]:
    """variant("positions off") copies the right tree and makes that line wrong; variant() is the right tree."""

    def make(name: str | None = None) -> Path:
        copy = shutil.copytree(RIGHT, tmp_path / "tree", ignore=shutil.ignore_patterns("__pycache__"))
        if name is not None:
            file, before, after = WRONG[name]
            source = (copy / file).read_text()
            assert before in source
            (copy / file).write_text(source.replace(before, after))
        return copy

    return make


@pytest.fixture
def checkpoint(tmp_path, variant):
    """(tree, target directory, draft directory): the target in several shards."""
    import torch

    from compatfix.introspect.tiny import build_tiny_draft_config, build_tiny_target
    from compatfix.validate.load_tree import load_tree

    target_config = json.loads((TARGETS / "qwen3-8b" / "config.json").read_text())
    draft_config = json.loads((TARGETS / "qwen3-8b-dflash" / "config.json").read_text())
    tiny = build_tiny_target(target_config, seed=0)
    tiny.model.float().save_pretrained(tmp_path / "target", max_shard_size="200KB")
    root = variant()
    draft_class = load_tree(root).draft_class
    torch.manual_seed(0)
    config = draft_class.config_class.from_dict(build_tiny_draft_config(draft_config, tiny.tiny).config)
    draft_class._from_config(config).float().save_pretrained(tmp_path / "draft")
    assert len(list((tmp_path / "target").glob("*.safetensors"))) > 1
    return root, tmp_path / "target", tmp_path / "draft"
