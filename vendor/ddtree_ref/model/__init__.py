"""The draft model, and the helpers that generation loops share with it."""

from .dflash import DFlashDraftModel
from .utils import (
    build_target_layer_ids,
    cut_after_stop,
    extract_context_feature,
    reached_stop,
    sample,
)

__all__ = [
    "DFlashDraftModel",
    "build_target_layer_ids",
    "cut_after_stop",
    "extract_context_feature",
    "reached_stop",
    "sample",
]
