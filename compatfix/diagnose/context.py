"""Suspects in the context that the draft is given: features, layer ids, the draft's own cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from compatfix.diagnose.pair import Pair
from compatfix.diagnose.plain_text import Trace
from compatfix.diagnose.toggle import NotHere, Suspect, Toggle
from compatfix.validate.caches import ARGUMENTS
from compatfix.validate.watch import Tamper, Watch

Call = Callable[[dict[str, Any]], Any]


class Features(Tamper):
    """The context's features are plain hidden states of the committed tokens at `entries` (0: the embeddings)."""

    def __init__(self, pair: Pair, entries: Sequence[int]) -> None:
        self._trace, self._entries = Trace(pair.target), list(entries)

    def around_draft(self, watch: Watch, call: Call, given: dict[str, Any]) -> Any:
        own = given["target_hidden"]
        with watch.quiet():
            plain = self._trace.rows(watch.committed, self._entries, own.shape[1])[None].to(own)
        if plain.shape != own.shape:
            raise NotHere(f"the tree's features have another shape than hidden states: {tuple(own.shape)}")
        return call({**given, "target_hidden": plain})


class Replayed(Tamper):
    """The draft gets all of the context at every call, and an empty cache; the tree's own cache takes the result."""

    def __init__(self) -> None:
        self._context: list[Tensor] = []

    def around_draft(self, watch: Watch, call: Call, given: dict[str, Any]) -> Any:
        name = next((name for name in ARGUMENTS if given.get(name) is not None), None)
        if name is None or "position_ids" not in given or not hasattr(given[name], "layers"):
            raise NotHere("the draft is not called with a cache and positions")
        from transformers import DynamicCache

        self._context.append(given["target_hidden"])
        context, own, fresh = torch.cat(self._context, dim=1), given[name], DynamicCache()
        length = context.shape[1] + given["noise_embedding"].shape[1]
        positions = torch.arange(length, device=context.device)[None]
        output = call({**given, "target_hidden": context, "position_ids": positions, name: fresh})
        own.layers = fresh.layers
        return output


def suspects(pair: Pair) -> list[Suspect]:
    ids, count = pair.bench.layer_ids, int(pair.config.num_hidden_layers)
    features = "Are the features that the draft reads the target's hidden states at the configured layers?"
    layers = "Are the layer ids those that the draft was trained on?"
    cache = Suspect(
        "draft's cache",
        "Is the draft's own cache rolled back, so that it holds the committed context and no more?",
        "CF951",
        (Toggle("draft replayed without a cache", "crop the draft's cache to the committed length", Replayed),),
    )
    if not ids:
        why = "the draft names no target_layer_ids"
        return [
            cache,
            Suspect("features", features, "CF951", reason=why),
            Suspect("layer ids", layers, "CF951", reason=why),
        ]
    step = "read hidden_states[layer_id + 1] of the committed tokens (compatfix patch TREE shows the places)"
    found = [
        cache,
        Suspect(
            "features",
            features,
            "CF951",
            (Toggle(f"plain hidden states at layers {ids}", step, lambda: Features(pair, [i + 1 for i in ids])),),
        ),
    ]
    toggles = tuple(
        Toggle(
            f"layer ids {tried}",
            f"set target_layer_ids to {tried} in the draft's config.json, or read hidden states at that offset",
            partial(Features, pair, [i + 1 for i in tried]),
        )
        for tried in candidates(ids, count)
    )
    return [*found, Suspect("layer ids", layers, "CF951", toggles, reason="no other ids are inside the target")]


def candidates(ids: Sequence[int], count: int) -> list[list[int]]:
    """Ids one lower and one higher, together and each alone, and the published rule; -1 is the embedding output."""
    tried = [[i - 1 for i in ids], [i + 1 for i in ids]]
    if len(ids) > 1:
        if len(ids) <= 3:
            tried += [[*ids[:k], ids[k] + by, *ids[k + 1 :]] for k in range(len(ids)) for by in (-1, 1)]
        first, last = 1, count - 3
        tried.append([round(first + k * (last - first) / (len(ids) - 1)) for k in range(len(ids))])
        tried.append(list(reversed(ids)))
    unique: list[list[int]] = []
    for entry in tried:
        if entry != list(ids) and entry not in unique and all(-1 <= i < count for i in entry):
            unique.append(entry)
    return unique
