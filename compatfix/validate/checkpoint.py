"""Whether directories hold weights that can be loaded at all, told without torch and before anything runs."""

from __future__ import annotations

from pathlib import Path

from compatfix.checkpoint.directory import HEADERS_ONLY, read_checkpoint
from compatfix.checkpoint.quantisation import describe_quantisation
from compatfix.checkpoint.quantised import plain_names
from compatfix.errors import UsageError
from compatfix.introspect.configfile import read_target_config


def check_checkpoint(target: str, draft: str | None) -> None:
    """Raises UsageError, in one line, where real weights of both cannot be loaded from these directories."""
    if draft is None:
        raise UsageError("real weights need a draft: give its directory with --draft")
    for directory in (Path(target), Path(draft)):
        if not directory.is_dir():
            raise UsageError(f"no weights in {directory}: real weights need a model directory")
        _check_fetched(directory)
        found = read_checkpoint(directory)
        if found.problems:
            more = f" (and {len(found.problems) - 1} more such faults)" if len(found.problems) > 1 else ""
            raise UsageError(f"{directory} cannot be loaded: {found.problems[0]}{more}")
        if found.form == "none":
            raise UsageError(f"no weights in {directory}: neither .safetensors nor .bin files")


def check_slice(target: str, values: str) -> None:
    """Raises UsageError where a slice would not run what the target runs, or cannot be read from its shards."""
    checkpoint = read_checkpoint(Path(target))
    quantisation = describe_quantisation(read_target_config(target), checkpoint.tensors)
    packed = "packed tensors" if plain_names(checkpoint.tensors)[1] else None
    method = quantisation.method if quantisation is not None else packed
    if method is not None:
        raise UsageError(
            f"{target} is quantised ({method}): a slice has plain weights, which run other kernels; use --on weights"
        )
    if values == "checkpoint":
        _check_fetched(Path(target))
        if not checkpoint.complete:
            why = checkpoint.problems[0] if checkpoint.problems else "no safetensors files"
            raise UsageError(f"{target} cannot be read for --slice-values checkpoint: {why}")


def _check_fetched(directory: Path) -> None:
    if (directory / HEADERS_ONLY).exists():
        raise UsageError(f"no weights in {directory}: only their headers were fetched from the hub")


def weight_bytes(directory: Path) -> int:
    """The size of the weight files that would be loaded from a directory."""
    return read_checkpoint(directory).bytes
