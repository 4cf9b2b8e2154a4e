"""Which layers of a deep model a tiny model keeps. Torch-free: lists and dicts in, indices out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

MIN_LAYERS = 4
MAX_LAYERS = 8
# A pattern longer than MAX_LAYERS is kept whole up to here; beyond, one layer of each kind is kept.
MAX_PERIOD = 16

# Fields that place a kind of layer every n-th layer.
PERIOD_FIELDS = (
    "full_attention_interval",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "attn_layer_period",
    "expert_layer_period",
    "decoder_sparse_step",
    "moe_layer_freq",
    "interleave_moe_layer_step",
    "cross_attention_interval",
)
# Fields that list the indices of layers of a kind.
INDEX_FIELDS = (
    "mlp_only_layers",
    "attn_layer_indices",
    "full_attn_idxs",
    "cross_attention_layers",
    "moe_layers",
    "no_rope_layer_indices",
)
# Fields that say how many layers at the front are of another kind.
PREFIX_FIELDS = ("first_k_dense_replace", "num_dense_layers")


@dataclass(frozen=True)
class LayerChoice:
    """`layers[i]` is the real layer that tiny layer i stands for; `period` is that of the real pattern, if any."""

    layers: tuple[int, ...]
    period: int | None
    kinds: int

    @property
    def is_prefix(self) -> bool:
        return self.layers == tuple(range(len(self.layers)))


def choose_layers(config: Mapping[str, Any], depth: int, *, repeats: bool = True) -> LayerChoice:
    """Keeps every kind of layer: whole periods of the pattern where there is one, else one layer of each kind.

    Without `repeats` a pattern is kept once, and layers that are all alike twice.
    """
    signatures = _signatures(config, depth)
    kinds = len(set(signatures))
    period = _period(signatures)
    if period is not None and period <= MAX_PERIOD:
        count = period if period > MAX_LAYERS // 2 or not repeats else MAX_LAYERS // period * period
        if kinds == 1:
            count = MIN_LAYERS if repeats else 2
        return LayerChoice(tuple(range(min(count, depth))), period, kinds)
    prefix = _shortest_prefix_with_all(signatures)
    if prefix <= MAX_LAYERS:
        least = MIN_LAYERS if repeats else 2
        return LayerChoice(tuple(range(min(max(prefix, least), depth))), None, kinds)
    firsts = dict.fromkeys(signatures)
    return LayerChoice(tuple(signatures.index(signature) for signature in firsts), None, kinds)


def per_layer_lists(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, list[Any]]]:
    """Lists that have one entry for each layer."""
    for name, value in config.items():
        if isinstance(value, (list, tuple)) and len(value) == depth and depth > 1 and name not in INDEX_FIELDS:
            yield name, list(value)


def _signatures(config: Mapping[str, Any], depth: int) -> list[tuple[Any, ...]]:
    """What makes a layer of its own kind, for each layer."""
    columns: list[list[Any]] = [[str(v) for v in values] for _, values in per_layer_lists(config, depth)]
    for name in INDEX_FIELDS:
        indices = config.get(name)
        if isinstance(indices, (list, tuple)):
            columns.append([i in indices for i in range(depth)])
    for name in PREFIX_FIELDS:
        count = config.get(name)
        if isinstance(count, int):
            columns.append([i < count for i in range(depth)])
    interval = lcm(*[v for v in (config.get(name) for name in PERIOD_FIELDS) if isinstance(v, int) and v > 0])
    # An interval that a list of layer types already expresses adds nothing; one that no list expresses must be kept.
    if interval > 1 and not any(True for _ in per_layer_lists(config, depth)):
        columns.append([i % interval for i in range(depth)])
    return [tuple(column[i] for column in columns) for i in range(depth)]


def _period(signatures: list[tuple[Any, ...]]) -> int | None:
    depth = len(signatures)
    for period in range(1, depth // 2 + 1):
        if all(signatures[i] == signatures[i % period] for i in range(depth)):
            return period
    return None


def _shortest_prefix_with_all(signatures: list[tuple[Any, ...]]) -> int:
    return max(signatures.index(signature) for signature in set(signatures)) + 1
