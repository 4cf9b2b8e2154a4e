"""What a draft's config says, wherever it says it: nested in `dflash_config`, at the top, or in a text config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from .refusal import RuntimeRefusal

NESTED = "dflash_config"
TEXT = "text_config"


def block_size(draft_or_config: Any) -> int:
    """The number of tokens in the draft's block, the last committed one included.

    Args: a draft, its config, or a config as a dict. A nested value goes before one at the top, as drafts are read
    that have both. Raises RuntimeRefusal where none is found, naming the places that were looked at.
    """
    config = config_of(draft_or_config)
    for place, holder in _holders(config):
        found = _get(holder, "block_size")
        if isinstance(found, int) and not isinstance(found, bool):
            if found < 1:
                raise RuntimeRefusal(f"block_size is {found} ({place}); a block holds at least one token")
            return found
    raise RuntimeRefusal(
        f"the draft's config has no block_size (looked in {', '.join(place for place, _ in _holders(config))}); "
        "pass the block size that the draft was trained with"
    )


def draft_value(draft_or_config: Any, name: str, default: Any = None) -> Any:
    """A field of the draft's config that is not None, or `default`; nested values go first."""
    for _, holder in _holders(config_of(draft_or_config)):
        found = _get(holder, name)
        if found is not None:
            return found
    return default


def draft_number(draft: Any, name: str) -> float | None:
    """A field of the draft's config that is a number; None where there is no draft or no such field."""
    value = None if draft is None else draft_value(draft, name)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise RuntimeRefusal(f"{name} in the draft's config is {value!r}, not a number")
    return float(value)


def config_of(draft_or_config: Any) -> Any:
    if isinstance(draft_or_config, nn.Module):
        return getattr(draft_or_config, "config", None)
    return draft_or_config


def _holders(config: Any) -> Iterator[tuple[str, Any]]:
    """The places of a config that hold fields of a draft, in the order in which they count."""
    nested, text = _get(config, NESTED), _get(config, TEXT)
    yield NESTED, nested
    yield "the top level", config
    yield TEXT, text
    if text is not None:
        yield f"{TEXT}.{NESTED}", _get(text, NESTED)


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
