"""The checkpoints of target and draft, held against the classes that will load them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compatfix.checkpoint.describe import checkpoint_in, describe
from compatfix.checkpoint.draft_tensors import match_draft
from compatfix.introspect.classes import config_from_dict, resolve
from compatfix.introspect.dtypes import dtype_of, quantisation_of
from compatfix.introspect.loading import match_tensors
from compatfix.introspect.words import one_line
from compatfix.profiles import CheckpointProfile, DraftProfile, TensorMatch


def describe_target_checkpoint(config: Mapping[str, Any], path: str, loader: str) -> CheckpointProfile | None:
    """None without weight files. Tensors are matched only where all of them are known."""
    checkpoint = checkpoint_in(path)
    if checkpoint is None:
        return None
    profile = describe(checkpoint)
    if not checkpoint.complete:
        return profile
    resolved = resolve(config_from_dict(dict(config)), loader)
    quantised = quantisation_of(config)[0] is not None
    try:
        match = match_tensors(resolved, checkpoint.tensors, dtype_of(config), quantised)
    except Exception as error:  # whatever the library raises when it is asked
        match = TensorMatch(resolved.name, error=one_line(error))
    return replace(profile, match=match)


def describe_draft_checkpoint(draft: DraftProfile | None) -> CheckpointProfile | None:
    checkpoint = checkpoint_in(draft.path) if draft is not None else None
    if draft is None or checkpoint is None:
        return None
    profile = describe(checkpoint)
    if draft.missing or not checkpoint.complete:
        return profile
    return replace(profile, match=match_draft(draft, checkpoint.tensors))
