"""Compares one generation with plain decoding: its tokens, the logits of its nodes, what its draft was given.

Each comparison gives None where everything agrees, else plain data that says where and by how much.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.validate.bench import Bench, Run
from compatfix.validate.plain import margins, uncached, uncached_rows
from compatfix.validate.watch import Forward

# Of the largest logit; plain decoding against itself is three orders below, planted faults two above.
TOLERANCE = 2e-4
FEATURE_TOLERANCE = 1e-3


def expected_tokens(reference: Sequence[int], limit: int, stops: Sequence[int] | None = ()) -> list[int]:
    """The reference cut at the limit and behind the first stop token."""
    tokens = list(reference[:limit])
    for index, token in enumerate(tokens):
        if token in (stops or ()):
            return tokens[: index + 1]
    return tokens


def token_difference(bench: Bench, run: Run, prompt: Sequence[int], expected: Sequence[int]) -> dict[str, Any] | None:
    """The first token that differs, both candidates, and the margin that plain decoding has there."""
    if run.tokens == list(expected):
        return None
    pairs = zip(run.tokens, expected, strict=False)
    index = next((i for i, (got, want) in enumerate(pairs) if got != want), min(len(run.tokens), len(expected)))
    got = run.tokens[index] if index < len(run.tokens) else None
    want = expected[index] if index < len(expected) else None
    with run.watch.quiet():
        logits = uncached(bench.target, [*prompt, *expected[:index]]).logits[-1]
    margin = float(margins(logits))
    behind = None if got is None else float(logits.max() - logits[got])
    return {
        "index": index,
        "got": got,
        "expected": want,
        "margin": margin,
        "got_behind_by": behind,
        "round": round_of(run, index),
        "got_length": len(run.tokens),
        "expected_length": len(expected),
    }


def round_of(run: Run, index: int) -> int | None:
    """The round that produced the token `index` behind the prompt; round 0 is the prefill."""
    if index == 0:
        return 0
    total = 1
    for number, length in enumerate(run.lengths, start=1):
        total += length
        if index < total:
            return number
    return None


def node_difference(bench: Bench, run: Run, rounds: Sequence[int]) -> dict[str, Any]:
    """Logits of every node of some rounds against an uncached forward over the committed tokens and the root path."""
    worst: dict[str, Any] = {"largest": 0.0, "nodes": 0, "wrong_argmax": 0, "bad": None}
    for number in rounds:
        forward = run.watch.rounds[number] if number < len(run.watch.rounds) else None
        if forward is None or forward.logits is None:
            continue
        for node, plain in _plain_nodes(bench, run, forward):
            seen = forward.logits[node]
            difference = float((seen - plain).abs().max())
            allowed = TOLERANCE * max(1.0, float(plain.abs().max()))
            worst["nodes"] += 1
            worst["wrong_argmax"] += int(seen.argmax() != plain.argmax())
            worst["largest"] = max(worst["largest"], difference)
            if difference > allowed and worst["bad"] is None:
                worst["bad"] = {"round": number + 1, "node": node, "difference": difference, "allowed": allowed}
    return worst


@dataclass(frozen=True)
class NodeError:
    """`distance` of a node's `logits` (V,) from a plain forward over `text`, which ends with the node."""

    distance: float
    text: tuple[int, ...]
    logits: torch.Tensor


def node_errors(bench: Bench, run: Run, rounds: Sequence[int], leaves: int) -> list[NodeError]:
    """Distances of node logits from a plain forward over the root path, largest entry of each, for some rounds and at
    most `leaves` paths of each."""
    found: list[NodeError] = []
    for number in rounds:
        forward = run.watch.rounds[number] if number < len(run.watch.rounds) else None
        if forward is not None and forward.logits is not None:
            for node, plain in _plain_nodes(bench, run, forward, leaves):
                path = [forward.tokens[at] for at in forward.path_to(node)]
                distance = float((forward.logits[node] - plain).abs().max())
                found.append(NodeError(distance, (*forward.committed, *path), forward.logits[node]))
    return found


def _plain_nodes(bench: Bench, run: Run, forward: Forward, most: int | None = None) -> list[tuple[int, torch.Tensor]]:
    parents = set(forward.parents)
    leaves = [node for node in range(len(forward.tokens)) if node not in parents]
    if most is not None and len(leaves) > most:
        leaves = [leaves[len(leaves) * i // most] for i in range(most)]
    paths = [forward.path_to(leaf) for leaf in leaves]
    texts = [[*forward.committed, *(forward.tokens[node] for node in path)] for path in paths]
    found: dict[int, torch.Tensor] = {}
    with run.watch.quiet():
        for path, plain in zip(paths, uncached_rows(bench.target, texts), strict=True):
            for offset, node in enumerate(path):
                found.setdefault(node, plain.logits[len(forward.committed) + offset])
    return sorted(found.items())


def feature_difference(bench: Bench, run: Run) -> dict[str, Any] | None:
    """The context handed to the draft against plain hidden states of the committed tokens at the draft's layers."""
    found = _features(bench, run)
    if found is None or isinstance(found, dict):
        return found
    rows, plain = found
    by_row = (rows - plain).abs().amax(-1)
    allowed = FEATURE_TOLERANCE * max(1.0, float(plain.abs().max()))
    if float(by_row.max()) <= allowed:
        return None
    row = int((by_row > allowed).nonzero()[0])
    return {"reason": "values", "token": row, "difference": float(by_row.max()), "allowed": allowed}


def feature_errors(bench: Bench, run: Run) -> list[float] | dict[str, Any] | None:
    """The same as distances, one per row and layer, relative to the largest entry there; a dict says what is wrong
    with the shape; None where there is nothing to compare."""
    found = _features(bench, run)
    if found is None or isinstance(found, dict):
        return found
    return relative(*found, len(bench.layer_ids))


def relative(rows: Tensor, plain: Tensor, layers: int) -> list[float]:
    """Largest distance over largest entry, for every row and each of `layers` equal parts of (T, layers * H)."""
    rows, plain = (x.reshape(len(x), layers, -1) for x in (rows, plain))
    scale = plain.abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny)
    distances: list[float] = ((rows - plain).abs().amax(-1) / scale).flatten().tolist()
    return distances


def _features(bench: Bench, run: Run) -> tuple[Tensor, Tensor] | dict[str, Any] | None:
    """Given and plain context (T, layers * H)."""
    watch = run.watch
    if not watch.features or not bench.layer_ids or watch.lost:
        return None
    rows = torch.cat(watch.features).float()
    text = watch.committed
    if len(rows) != len(text):
        return {"reason": "count", "rows": len(rows), "committed": len(text)}
    with watch.quiet():
        hidden = uncached(bench.target, text, hidden=True).hidden
    plain = torch.cat([hidden[layer + 1] for layer in bench.layer_ids], dim=-1)
    if plain.shape != rows.shape:
        return {"reason": "shape", "given": list(rows.shape), "expected": list(plain.shape)}
    return rows, plain


def draft_cache_difference(bench: Bench, run: Run) -> tuple[bool, dict[str, Any] | None]:
    """The last draft again with a fresh cache and all of the context: its output must be the same.

    Returns whether that could be compared, and the difference.
    """
    wrong = _stored(run)
    if wrong is not None:
        return True, wrong
    fresh = replayed(bench, run)
    if fresh is None:
        return False, None
    seen = run.watch.last_draft["output"].float()
    difference = float((fresh - seen).abs().max())
    allowed = FEATURE_TOLERANCE * max(1.0, float(seen.abs().max()))
    return True, None if difference <= allowed else {"reason": "values", "difference": difference, "allowed": allowed}


def draft_errors(bench: Bench, run: Run, exact: nn.Module) -> tuple[list[float], list[float]] | dict[str, Any] | None:
    """How far the last draft's output is off the draft in a larger dtype (`exact`), by row, and how far its replay is.

    Relative to the largest entry. A dict says what is wrong with the draft's cache; None: nothing can be compared.
    """
    wrong = _stored(run)
    if wrong is not None:
        return wrong
    again, true = replayed(bench, run), replayed(bench, run, exact)
    if again is None or true is None:
        return None
    seen = run.watch.last_draft["output"][0].float()
    return relative(seen, true[0], 1), relative(again[0], true[0], 1)


def _stored(run: Run) -> dict[str, Any] | None:
    """The draft's cache holds another number of tokens than were committed when it was last called."""
    watch = run.watch
    before = sum(watch.counts[:-1])
    if watch.lost or not watch.draft_lengths or watch.draft_lengths[-1] == before:
        return None
    return {"reason": "length", "stored": watch.draft_lengths[-1], "committed": before}


def replayed(bench: Bench, run: Run, exact: nn.Module | None = None) -> Tensor | None:
    """What the draft (or `exact`, a copy in a larger dtype) says without a cache of its own: (1, Q, H).

    None where the text could not be followed, nothing was drafted, or the draft cannot be called in this other way.
    """
    watch = run.watch
    if watch.lost or not watch.last_draft:
        return None
    real, through = watch.last_draft["real"], watch.last_draft["through"]
    arguments = dict(watch.last_draft["arguments"])
    extra = arguments.pop("kwargs", {})
    names = inspect.signature(real).parameters
    context = torch.cat(watch.features)[None]
    arguments["target_hidden"] = context
    if "position_ids" in names:
        length = context.shape[1] + arguments["noise_embedding"].shape[1]
        arguments["position_ids"] = torch.arange(length, device=context.device)[None]
    for name in ("past_key_values", "cache"):
        if name in arguments:
            arguments[name] = _fresh_cache()
    if exact is not None:
        dtype = next(exact.parameters()).dtype
        arguments = {
            k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in arguments.items()
        }
        through = None if through is None else functools.partial(through.func, exact)
        real = exact.forward
    try:
        with watch.quiet(), torch.inference_mode():
            output = (through or real)(**arguments, **extra)
    except Exception:
        return None
    states = output if isinstance(output, Tensor) else output[0]
    return states.detach().double() if states.dtype == torch.float64 else states.detach().float()


def _fresh_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()
