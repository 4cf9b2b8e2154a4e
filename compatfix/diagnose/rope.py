"""Suspect: the draft's rotary embedding has other parameters than it was trained with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from compatfix.diagnose.pair import Pair, swapped
from compatfix.diagnose.toggle import NotHere, Suspect, Toggle

USUAL = (10_000.0, 500_000.0, 1_000_000.0, 10_000_000.0)


def suspects(pair: Pair) -> list[Suspect]:
    question = "Does the draft rotate positions as in its training (theta, scaling)?"
    rotary = next((m for m in pair.draft.modules() if isinstance(getattr(m, "inv_freq", None), torch.Tensor)), None)
    if rotary is None:
        return [Suspect("draft's rope", question, "CF951", reason="the draft has no rotary embedding")]
    own = float(_theta(_parameters(pair.draft.config)) or 0)
    toggles = []
    for parameters, what in _candidates(pair):
        if _theta(parameters) == own and parameters.get("rope_type", "default") == _kind(pair.draft.config):
            continue
        told = f"theta {_theta(parameters):g}, {parameters.get('rope_type', 'default')}"
        step = f"set rope_parameters in the draft's config.json to {told}"
        around = lambda p=parameters: _rotating(rotary, pair.draft.config, p)  # noqa: E731
        toggles.append(Toggle(f"rope of {what} ({told})", step, around=around))
    return [Suspect("draft's rope", question, "CF951", tuple(toggles))]


def _candidates(pair: Pair) -> Iterator[tuple[dict[str, Any], str]]:
    for parameters in _by_layer(_parameters(pair.config)):
        yield parameters, "the target"
    if _kind(pair.draft.config) != "default":
        yield (
            {"rope_type": "default", "rope_theta": _theta(_parameters(pair.draft.config))},
            "the draft without scaling",
        )
    targets = {_theta(parameters) for parameters in _by_layer(_parameters(pair.config))}
    for theta in USUAL:
        if theta not in targets:
            yield {"rope_type": "default", "rope_theta": theta}, "a usual theta"


def _by_layer(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Some families keep parameters by layer type."""
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    found = [{k: v for k, v in p.items() if k != "partial_rotary_factor"} for p in (nested or [parameters])]
    return [parameters for parameters in found if _theta(parameters) is not None]


def _parameters(config: Any) -> dict[str, Any]:
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    theta = getattr(config, "rope_theta", None)
    return {**({} if theta is None else {"rope_theta": theta}), **found}


def _theta(parameters: dict[str, Any]) -> float | None:
    theta = parameters.get("rope_theta")
    return None if theta is None else float(theta)


def _kind(config: Any) -> str:
    return str(_parameters(config).get("rope_type", "default"))


def _rotating(rotary: nn.Module, config: Any, parameters: dict[str, Any]) -> AbstractContextManager[None]:
    changed = copy.deepcopy(config)
    try:
        changed.rope_parameters = dict(parameters)
        changed.rope_theta = parameters["rope_theta"]
        made: Any = type(rotary)(changed)
    except Exception as error:
        raise NotHere(f"the draft's rotary embedding takes no such parameters: {error}") from error
    own: Any = rotary
    if made.inv_freq.shape != own.inv_freq.shape:
        raise NotHere("the target rotates another number of dimensions")
    return _with_scaling(own, made)


@contextmanager
def _with_scaling(own: Any, made: Any) -> Iterator[None]:
    before = getattr(own, "attention_scaling", None)
    with swapped({"inv_freq": (own.inv_freq, made.inv_freq.to(own.inv_freq))}):
        if before is not None:
            own.attention_scaling = made.attention_scaling
        try:
            yield
        finally:
            if before is not None:
                own.attention_scaling = before
