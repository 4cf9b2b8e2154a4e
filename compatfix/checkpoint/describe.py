"""A checkpoint's headers as the profile that a report shows. Free of torch."""

from __future__ import annotations

from pathlib import Path

from compatfix.checkpoint.directory import Checkpoint, read_checkpoint
from compatfix.profiles import CheckpointProfile


def describe(checkpoint: Checkpoint) -> CheckpointProfile:
    return CheckpointProfile(
        path=checkpoint.directory,
        form=checkpoint.form,
        files=tuple(header.file for header in checkpoint.headers) or checkpoint.pickles,
        tensors=len(checkpoint.tensors),
        parameters=sum(tensor.elements for tensor in checkpoint.tensors.values()),
        bytes=checkpoint.bytes,
        by_dtype=checkpoint.by_dtype(),
        pickles=checkpoint.pickles,
        unread=checkpoint.unread,
        problems=checkpoint.problems,
        remarks=checkpoint.remarks,
    )


def checkpoint_in(path: str) -> Checkpoint | None:
    """The checkpoint of a model directory; None for a config file, or a directory that holds no weight files."""
    place = Path(path)
    if not place.is_dir():
        return None
    found = read_checkpoint(place)
    return None if found.form == "none" else found
