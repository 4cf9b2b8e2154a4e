"""Is there room for target, draft and all that a run keeps? Asked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from compatfix.checkpoint.directory import read_checkpoint
from compatfix.introspect.classes import NoClass, config_from_dict, resolve
from compatfix.introspect.devices import device_of
from compatfix.introspect.draft import read_draft
from compatfix.introspect.dtypes import bytes_of, dtype_of
from compatfix.introspect.states import count_states
from compatfix.memory_plan import Needs, RunPlan, gigabytes, plan_run
from compatfix.validate.bench import read_config
from compatfix.validate.load_model import Incomplete

# A prompt of one's own, beside what is generated.
PROMPT = 512


def plan_of(args: Mapping[str, Any], loader: str, device: str) -> RunPlan:
    """What `--on weights` needs on `device`, by the files that are there and the config's own class."""
    target_dir, draft_dir = Path(args["target"]), Path(args["draft"])
    config = read_config(target_dir)
    dtype = args.get("dtype") or dtype_of(config)
    weights, draft = _weights(target_dir, args.get("dtype")), read_draft(draft_dir)
    needs = Needs(
        weights=weights,
        vocab=draft.vocab_size,
        hidden=draft.hidden_size * bytes_of(dtype),
        draft_weights=_weights(draft_dir, args.get("dtype")),
        draft_kv_per_token=2 * draft.num_layers * draft.kv_heads * draft.head_dim * bytes_of(dtype),
        draft_reads=len(draft.layer_ids),
        **_states(config, loader, dtype),
    )
    place, budget = device_of(torch.device(device)), max(args.get("budgets") or (0,))
    context = PROMPT + int(args.get("tokens") or 0)
    return plan_run(needs, [place] if place is not None else [], context=context, tree_budget=budget)


def check_room(args: Mapping[str, Any], loader: str, device: str) -> RunPlan:
    """Raises Incomplete, with the numbers, where the plan does not fit."""
    plan = plan_of(args, loader, device)
    if plan.fits is None:
        parts = sorted((item for item in plan.items if item.counted), key=lambda item: -item.bytes)
        told = ", ".join(f"{item.text} {gigabytes(item.bytes)}" for item in parts[:4])
        raise Incomplete(
            f"{plan.verdict}: {told}",
            needed=plan.total,
            hint="run where that much memory is free, spread the target with --device-map auto, or judge --on slice",
        )
    return plan


def _weights(directory: Path, dtype: str | None) -> int:
    """In the dtype that they are loaded in: as stored, or as asked for."""
    found = read_checkpoint(directory)
    if dtype is None or not found.complete:
        return found.bytes
    return sum(tensor.elements for tensor in found.tensors.values()) * bytes_of(dtype)


def _states(config: dict[str, Any], loader: str, dtype: str) -> dict[str, Any]:
    try:
        states = count_states(resolve(config_from_dict(config), loader), dtype)
    except NoClass:
        return {}
    return {
        "kv_per_token": states.kv_per_token,
        "windows": states.window_bytes,
        "state": states.state,
        "record_per_node": states.record_per_node,
    }
