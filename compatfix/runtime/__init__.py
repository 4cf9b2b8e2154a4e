"""What patched code calls: exact verification of draft tokens, and exact rollback, on any cache and version.

This package is copied into patched trees; it depends on torch and transformers only and keeps no generation state of
its own. `verify` a block, then `commit` the accepted path; see verification.py for the contract.
"""

from __future__ import annotations

from .caches import new_cache
from .draft import draft_forward
from .draft_config import block_size
from .hidden import used_by
from .parts import attention, draft_logits, hidden_state, input_embeddings, synchronize
from .plans import describe, prepare
from .refusal import RuntimeRefusal
from .verification import commit, crop_to, roll_back, verify

VERSION = "1"

__all__ = [
    "VERSION",
    "RuntimeRefusal",
    "attention",
    "block_size",
    "commit",
    "crop_to",
    "describe",
    "draft_forward",
    "draft_logits",
    "hidden_state",
    "input_embeddings",
    "new_cache",
    "prepare",
    "roll_back",
    "synchronize",
    "used_by",
    "verify",
]
