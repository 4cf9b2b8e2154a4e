"""What a generation function returned: the output ids, and what comes with them, in every published shape.

Whether the prompt is part of the output is never guessed from one run: a tree that loses the prompt looks the same as
one that returns only the new tokens. The name of the field says it, or the user does (`--result FIELD:new`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from compatfix.validate.entries import Entry, TreeError
from compatfix.validate.roles import ResultChoice, closest

# DFlash and DDTree say output_ids, the library's generate says sequences.
OUTPUT_FIELDS = ("output_ids", "sequences", "output_tokens", "token_ids", "tokens", "generated_sequence")
# Names that say themselves that the prompt is not in it.
NEW_FIELDS = ("new_tokens", "new_token_ids", "generated_ids", "generated_tokens", "completion_ids")
LENGTH_FIELDS = ("acceptance_lengths", "accept_lengths", "accepted_lengths")
# Counts under names that leave no doubt what is counted: tokens of the prompt, new tokens, rounds of verification.
COUNT_FIELDS = {
    "prompt": ("num_input_tokens", "num_prompt_tokens"),
    "new": ("num_output_tokens", "num_generated_tokens", "num_new_tokens"),
    "rounds": ("decode_rounds", "num_rounds", "num_decode_rounds"),
}
STATS_FIELDS = ("stats", "statistics")
EXPECTED = "a tensor of token ids of shape (1, n) or (n,), a list of ints, or an object with one of these as output_ids"


@dataclass(frozen=True)
class Output:
    """`tokens` without the prompt; `kept` whether the prompt stood before them as it must.

    `lengths` are the accepted lengths that come with them; `unread` is the name and the content of a field of lengths
    that are no whole numbers. `counts` are the numbers that come with them, by the name of their field.
    """

    tokens: list[int]
    kept: bool
    lengths: list[int] | None = None
    stage_times: Mapping[str, float] = field(default_factory=dict)
    unread: tuple[str, str] | None = None
    counts: Mapping[str, float] = field(default_factory=dict)


def collected(result: Any, entry: Entry) -> Any:
    """A generator's or coroutine's tokens or result; anything else as it is."""
    if inspect.iscoroutine(result):
        return collected(asyncio.run(_awaited(result)), entry)
    if inspect.isasyncgen(result):
        return _Yielded([token for item in asyncio.run(_all(result)) for token in _items(item, entry)])
    if inspect.isgenerator(result):
        return _Yielded([token for item in result for token in _items(item, entry)])
    return result


def read_output(result: Any, prompt: Sequence[int], entry: Entry) -> Output:
    """Raises TreeError (CF917), which says what was expected and what exists."""
    found, own_name = _output_ids(result, entry)
    ids = _token_ids(found)
    if ids is None:
        named = f"field {own_name} is" if own_name else "it is"
        raise _misfit(f"{named} {_shown(found)}", result, entry)
    new = entry.result.only_new or own_name in NEW_FIELDS or isinstance(result, _Yielded)
    kept = new or ids[: len(prompt)] == list(prompt)
    times = _lookup(result, ("stage_times",))
    stages = {k: float(v) for k, v in times.items()} if isinstance(times, Mapping) else {}
    name, claimed = _named(result, LENGTH_FIELDS) or ("", None)
    lengths = _whole(claimed)
    unread = (name, _content(claimed)) if name and lengths is None else None
    return Output(ids if new else ids[len(prompt) :], kept, lengths, stages, unread, _counts(result))


class _Yielded(list[int]):
    """Tokens that a generator yielded one after the other: never the prompt."""


def _output_ids(result: Any, entry: Entry) -> tuple[Any, str | None]:
    """The part of a result that should hold the ids, and the name of its field."""
    wanted = entry.result.field
    if wanted is not None:
        parts = _fields(result)
        if wanted not in parts:
            raise _misfit(f"it has no {wanted!r}; {closest(wanted, parts)}", result, entry)
        return parts[wanted], wanted
    if _token_ids(result) is not None:
        return result, None
    if type(result) is tuple and result:
        return _output_ids(result[0], entry)
    parts = _fields(result)
    name = next((name for name in (*OUTPUT_FIELDS, *NEW_FIELDS) if name in parts), None)
    return (parts[name], name) if name else (result, None)


def _token_ids(value: Any) -> list[int] | None:
    """The ids of one text, None for what is no such thing."""
    if isinstance(value, Tensor):
        whole = not value.is_floating_point() and not value.is_complex() and value.dtype is not torch.bool
        fits = value.dim() == 1 or (value.dim() == 2 and value.shape[0] == 1)
        return [int(token) for token in value.flatten().tolist()] if whole and fits else None
    if isinstance(value, (list, tuple)):
        if len(value) == 1 and isinstance(value[0], (list, tuple)):
            return _token_ids(value[0])
        return None if any(isinstance(item, float) for item in value) else _whole(value)
    return None


def _counts(result: Any) -> dict[str, float]:
    """Single numbers under names of COUNT_FIELDS; lists are something else, of the same name."""
    known = [name for names in COUNT_FIELDS.values() for name in names]
    found = {name: _lookup(result, (name,)) for name in known}
    single = {n: v.item() if isinstance(v, Tensor) and v.dim() == 0 else v for n, v in found.items()}
    return {n: float(v) for n, v in single.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def _whole(value: Any) -> list[int] | None:
    if isinstance(value, Tensor):
        value = value.flatten()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], (list, tuple)):
        value = value[0]
    if not isinstance(value, (list, tuple)):
        return None
    numbers: list[Any] = [item.item() if isinstance(item, Tensor) and item.numel() == 1 else item for item in value]
    if any(
        isinstance(n, bool) or not (isinstance(n, int) or (isinstance(n, float) and n.is_integer())) for n in numbers
    ):
        return None
    return [int(n) for n in numbers]


def _lookup(result: Any, names: Sequence[str]) -> Any:
    found = _named(result, names)
    return None if found is None else found[1]


def _named(result: Any, names: Sequence[str]) -> tuple[str, Any] | None:
    """The first of these fields in the result, in what comes beside the ids, or in its statistics, and its name."""
    for part in (result, *(result[1:] if type(result) is tuple else ())):
        parts = _fields(part)
        for holder in (parts, *(_fields(parts[name]) for name in STATS_FIELDS if name in parts)):
            for name in names:
                if holder.get(name) is not None:
                    return name, holder[name]
    return None


def _fields(value: Any) -> dict[str, Any]:
    """Fields of a mapping or an object, places of a tuple."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {str(place): item for place, item in enumerate(value)}
    if isinstance(value, (Tensor, list, str, bytes, int, float)) or value is None:
        return {}
    names: Any = getattr(value, "_fields", None) or getattr(value, "__dict__", None) or getattr(value, "__slots__", ())
    return {name: getattr(value, name, None) for name in names if not name.startswith("_")}


def _items(item: Any, entry: Entry) -> list[int]:
    ids = [item] if isinstance(item, int) and not isinstance(item, bool) else _token_ids(item)
    if ids is None and isinstance(item, Tensor) and item.numel() == 1 and not item.is_floating_point():
        ids = [int(item)]
    if ids is None:
        raise _misfit(f"it yields {_shown(item)}", item, entry, "a generator of tokens, each an int or a list of ints")
    return ids


async def _awaited(result: Any) -> Any:
    return await result


async def _all(result: Any) -> list[Any]:
    return [item async for item in result]


def _misfit(what: str, result: Any, entry: Entry, expected: str = EXPECTED) -> TreeError:
    exists = {name: _shown(value) for name, value in _fields(result).items()}
    told = "; it holds " + ", ".join(f"{name}: {shown}" for name, shown in list(exists.items())[:8]) if exists else ""
    usable = [name for name, value in _fields(result).items() if _token_ids(value)]
    such_as = [ResultChoice(name, entry.result.only_new, entry.place) for name in usable[:1]]
    hint = f"; name the field with --result, such as --result {such_as[0]}" if such_as else ""
    message = f"the result of {entry.place}, {_shown(result)}, does not fit: {what}{told}; expected {expected}{hint}"
    found = {"entry": entry.place, "expected": expected, "exists": exists, "type": type(result).__name__}
    return TreeError("CF917", message, **found)


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    return "None" if value is None else type(value).__name__


def _content(value: Any) -> str:
    """What a field holds, with its first values where it has some."""
    values = value.flatten().tolist() if isinstance(value, Tensor) else value
    if not isinstance(values, (list, tuple)):
        return str(value)[:40] if isinstance(value, (int, float, str)) else _shown(value)
    begin = ", ".join(str(item)[:20] for item in values[:3])
    return f"{_shown(value)}: {begin}{', …' if len(values) > 3 else ''}"
