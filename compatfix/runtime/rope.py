"""Rotary frequencies that depend on the largest position of a forward, which a block of tokens shares.

The library scales some rotary embeddings by the length seen: "longrope" (Phi-3) has one set of frequencies below the
length that the model was first trained for and another behind it; "dynamic" has new ones for every length behind it,
and keeps the largest. One forward over a block that reaches behind that length rotates all its tokens alike, while
plain decoding rotates each by its own position. The start-up measurement is too short to see it, so it is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .refusal import RuntimeRefusal

# Where a config keeps the length from which the frequencies change; the first may also stand beside the rope's type.
LENGTHS = ("original_max_position_embeddings", "max_position_embeddings")


def needs_single_steps(config: Any, first: int, last: int) -> bool:
    """Whether the positions `first` to `last` are rotated right only if each has a forward of its own.

    Raises RuntimeRefusal where not even that is right, since a rejected token leaves its frequencies behind.
    """
    for kind, boundary in _scaled(config):
        if kind == "dynamic" and last >= boundary:
            raise RuntimeRefusal(
                f"positions up to {last} under dynamic rope scaling: behind {boundary} tokens its frequencies follow "
                "the longest text seen, rejected tokens included; speculate below that length only"
            )
        if kind == "longrope" and first < boundary <= last:
            return True
    return False


def _scaled(config: Any) -> Iterator[tuple[str, int]]:
    """(kind, length from which the frequencies change) of each rope of a config; they may be kept by layer type."""
    for name in ("rope_parameters", "rope_scaling"):
        stored = getattr(config, name, None)
        if not isinstance(stored, Mapping):
            continue
        for rope in (stored, *stored.values()):
            if not isinstance(rope, Mapping):
                continue
            kind = rope.get("rope_type", rope.get("type"))
            lengths = [rope.get(LENGTHS[0]), *(getattr(config, field, None) for field in LENGTHS)]
            boundary = next((length for length in lengths if isinstance(length, int)), None)
            if isinstance(kind, str) and boundary is not None:
                yield kind, boundary
