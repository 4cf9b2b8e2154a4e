"""A slice of the real target: few layers at real widths, on the device, in the dtype and with the attention that run.

Kernels depend on widths, head counts, dtype and device, and not on depth or on what the weights are: a slice runs them
for a fraction of the checkpoint's memory. Its draft is of the tree's class at the target's width, with an oracle in
its place for the drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compatfix.checkpoint.directory import read_checkpoint
from compatfix.checkpoint.layers import tensors_of_layers
from compatfix.introspect.classes import Resolved, config_from_dict, resolve
from compatfix.introspect.shrink import text_part
from compatfix.introspect.shrink_draft import draft_for_slice
from compatfix.introspect.skeleton import build_skeleton, decoder_layers_path
from compatfix.introspect.slices import Slice, slice_of
from compatfix.introspect.weights import reinitialise
from compatfix.memory_plan import gigabytes
from compatfix.validate.bench import DEFAULT_LOADER, Bench, chosen, plain_draft, read_config
from compatfix.validate.bf16 import compare_with_noise
from compatfix.validate.devices import absent, best_device, free_bytes
from compatfix.validate.kernels import what_ran
from compatfix.validate.load_model import Incomplete, check_values, loading
from compatfix.validate.load_tree import load_tree
from compatfix.validate.measure import threads_in_use
from compatfix.validate.noisy_faults import run_noisy_faults
from compatfix.validate.oracle import ORACLE
from compatfix.validate.weights import without_mask

FIRST_PROMPT = 900
# Room for activations, caches and float32 copies of single tensors beside the weights.
RESERVE = 1.25
# Parameters from which on a forward gains by more than one thread.
LARGE = 50_000_000


class SliceBench(Bench):
    """A bench whose target is a slice; `weights` says where its values come from, `windows` which were shortened."""

    cut: Slice
    weights: str
    windows: dict[str, int]


def load_slice(args: Mapping[str, Any], progress: Callable[..., None]) -> SliceBench:
    """Builds target and draft. Raises TreeError, NoClass, Incomplete."""
    tree = load_tree(Path(args["tree"]), chosen(args))
    config = read_config(Path(args["target"]))
    loader = args.get("loader") or tree.loader or DEFAULT_LOADER
    whole = resolve(config_from_dict(config), loader)
    cut, windows = slice_of(whole.config.to_dict(), repeats=False).with_short_windows()
    resolved = Resolved(loader, whole.model_class, type(whole.config).from_dict(cut.config))
    dtype = _dtype(args.get("dtype"), whole.config)
    wanted = args.get("device") or best_device()
    if (why := absent(wanted)) is not None:
        raise Incomplete(why, hint="give another --device")
    device = torch.device(wanted)
    text = text_part(cut.config)
    draft_dir = args.get("draft")
    draft_config = read_config(Path(draft_dir)) if draft_dir else plain_draft(config)
    small = draft_for_slice(draft_config, len(cut.layers), cut.depth)
    _check_kinds(whole, resolved, cut)
    _check_room(resolved, dtype, device, cut)
    progress(f"building {len(cut.layers)} of {cut.depth} layers at their real width", 0, 2)
    target, weights = _target(resolved, cut, args, dtype, device, small.mask_token_id)
    progress("building the draft", 1, 2)
    draft_class: Any = tree.draft_class
    torch.manual_seed(args["seed"])
    made: nn.Module = draft_class._from_config(draft_class.config_class.from_dict(small.config))
    bench = SliceBench(
        tree=tree,
        target=target,
        draft=made.to(device=device, dtype=dtype).eval(),
        block=small.block_size,
        mask=small.mask_token_id,
        plain_tokens=without_mask(small.mask_token_id, int(text["vocab_size"])),
        seed=args["seed"],
    )
    bench.cut, bench.weights, bench.windows = cut, weights, windows
    if sum(p.numel() for p in target.parameters()) >= LARGE:
        torch.set_num_threads(int(args.get("threads") or threads_in_use()))
    return bench


def run_slice(bench: Bench, args: Mapping[str, Any], report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Every mode against plain decoding with the noise of the same run, and faults planted on this very model."""
    assert isinstance(bench, SliceBench)
    prompts = [bench.prompt(FIRST_PROMPT + index) for index in range(args["prompts"])]
    modes = bench.modes(args["budgets"])
    table = compare_with_noise(bench, modes, prompts, args["tokens"], ORACLE, report, "slice")
    broken = any(row["error"] for row in table["modes"])
    # A tree shows everything that a chain shows, and a larger one has more siblings.
    shown = max(modes, key=lambda mode: mode.budget or 0)
    table["faults"] = [] if broken else run_noisy_faults(bench, shown, prompts, ORACLE, report)
    return {
        **table,
        "layers": list(bench.cut.layers),
        "depth": bench.cut.depth,
        "values": bench.weights,
        "windows": bench.windows,
        **what_ran(bench.target),
    }


def _dtype(asked: str | None, config: Any) -> torch.dtype:
    """As asked, or else as the checkpoint would be loaded."""
    found = getattr(torch, asked) if asked else getattr(config.get_text_config(), "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


def _check_kinds(whole: Resolved, resolved: Resolved, cut: Slice) -> None:
    """The layers of the slice must be of every kind that the real model has, by what they are made of."""
    every = _kinds(whole)
    lost = every - _kinds(resolved)
    if lost:
        raise Incomplete(
            f"a slice of {len(cut.layers)} layers lacks {len(lost)} of the {len(every)} kinds of layer of the whole",
            hint="run --on weights; the layers of this config are not told apart by its lists",
        )


def _kinds(resolved: Resolved) -> set[tuple[tuple[str, str], ...]]:
    """What each decoder layer is made of: the class of every module in it, and the shape of every parameter."""
    skeleton = build_skeleton(resolved, "float32")
    path = decoder_layers_path(skeleton)
    layers: Any = () if path is None else skeleton.get_submodule(path)
    return {
        (
            *((name, type(module).__name__) for name, module in layer.named_modules()),
            *((name, str(tuple(parameter.shape))) for name, parameter in layer.named_parameters()),
        )
        for layer in layers
    }


def _check_room(resolved: Resolved, dtype: torch.dtype, device: torch.device, cut: Slice) -> None:
    skeleton = build_skeleton(resolved, str(dtype).removeprefix("torch."))
    needed = int(RESERVE * sum(p.numel() * p.element_size() for p in skeleton.parameters()))
    free = free_bytes(device)
    if free is not None and needed > free:
        told = f"{gigabytes(needed)} on {device}, and {gigabytes(free)} are free"
        raise Incomplete(
            f"a slice of {len(cut.layers)} layers needs {told}",
            hint="run on a device with that much free memory",
        )


def _target(
    resolved: Resolved, cut: Slice, args: Mapping[str, Any], dtype: torch.dtype, device: torch.device, mask: int
) -> tuple[nn.Module, str]:
    asked = {} if args.get("attn") is None else {"attn_implementation": args["attn"]}
    if args.get("values") == "checkpoint":
        return _from_shards(resolved, cut, Path(args["target"]), dtype, device, asked), "read from the checkpoint"
    with loading("slice"), torch.device(device):
        model = resolved.model_class._from_config(resolved.config, dtype=dtype, **asked)
    model.eval()
    reinitialise(model, args["seed"], [mask])
    return model, "random"


def _from_shards(
    resolved: Resolved, cut: Slice, directory: Path, dtype: torch.dtype, device: torch.device, asked: dict[str, Any]
) -> nn.Module:
    """The chosen layers' own tensors, and everything outside the layers, through the library's own loading."""
    from safetensors import safe_open

    found = read_checkpoint(directory)
    if not found.complete:
        raise Incomplete(f"{directory} has no complete safetensors to read the slice from")
    try:
        wanted = tensors_of_layers(found.tensors, cut.layers, cut.depth)
    except ValueError as error:
        raise Incomplete(str(error)) from error
    state: dict[str, torch.Tensor] = {}
    for header in found.headers:
        with safe_open(directory / header.file, framework="pt") as file:
            state |= {wanted[t.name]: file.get_tensor(t.name) for t in header.tensors if t.name in wanted}
    with loading("slice"):
        model, info = resolved.model_class.from_pretrained(
            None, config=resolved.config, state_dict=state, dtype=dtype, output_loading_info=True, **asked
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise Incomplete(
            f"{len(missing)} tensors of the slice are not in {directory}: {missing[0]}", missing=missing[:20]
        )
    check_values(model, directory)
    loaded: nn.Module = model.to(device).eval()
    return loaded
