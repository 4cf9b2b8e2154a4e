"""Which strategy verifies on a target: measured once per model object, kept with it, told in one line of the log."""

from __future__ import annotations

import logging
import os
import sys
import threading
import types
import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from .parts import input_embeddings
from .probe import Baseline, baseline, error_of, untouched
from .refusal import RuntimeRefusal
from .strategies import STRATEGIES, Facts, Strategy

log = logging.getLogger(__name__)

FORCED = "COMPATFIX_STRATEGY"
STATE_BYTES = "COMPATFIX_STATE_BYTES"


@dataclass(frozen=True)
class Trial:
    """What came of trying one strategy. `error` is e; without it the strategy was not run, for the reason given."""

    strategy: str
    accepted: bool
    error: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Plan:
    """The measured choice for one target in one dtype."""

    strategy: Strategy | None
    facts: Facts
    key: tuple[Any, ...]
    noise: float
    noise_floor: float
    fault: float
    windows_passed: bool
    trials: tuple[Trial, ...] = field(default=())
    forced: str | None = None

    def refusal(self) -> str:
        tried = "; ".join(f"{trial.strategy}: {trial.reason}" for trial in self.trials)
        return (
            f"no strategy agrees with plain decoding on this model ({tried}). "
            f"Measured in {self.facts.dtype}: noise n = {self.noise:.3g}, smallest fault f = {self.fault:.3g}"
        )


_plans: weakref.WeakKeyDictionary[nn.Module, Plan] = weakref.WeakKeyDictionary()


def prepare(target: nn.Module, strategy: str | None = None, memory_limit: int | None = None) -> dict[str, Any]:
    """Measures the strategies on `target` and chooses one; returns what `describe` does. Done once per model object.

    `strategy` (or the environment variable COMPATFIX_STRATEGY) names the only one to try; it is measured all the same.
    `memory_limit` (or COMPATFIX_STATE_BYTES) bounds the bytes that states may take during a verify, beside those of the
    cache itself. Tree forms hold none; mixer levels stays below by taking smaller steps through the tree; a strategy
    that cannot stay below refuses the block before anything is changed.
    Raises RuntimeRefusal, with the numbers, where none agrees with plain decoding.
    """
    if memory_limit is not None and memory_limit <= 0:
        raise RuntimeRefusal(f"a memory_limit of {memory_limit} bytes leaves no room for a state")
    with lock_of(target):
        known = _plans.get(target)
        if known is not None and known.strategy is None:
            # What stood in the way may be gone; who asks again is told anew.
            del _plans[target]
            memory_limit = known.facts.state_limit if memory_limit is None else memory_limit
        plan_of(target, strategy, memory_limit)
    return describe(target)


def describe(target: nn.Module) -> dict[str, Any]:
    """What is known about verification on `target`, as plain data; {"measured": False} before anything was."""
    plan = _plans.get(target)
    if plan is None:
        return {"measured": False, "strategy": None}
    return {
        "measured": True,
        "strategy": plan.strategy.name if plan.strategy else None,
        "forced": plan.forced,
        "dtype": str(plan.facts.dtype).removeprefix("torch."),
        "noise": plan.noise,
        "noise_floor": plan.noise_floor,
        "fault": plan.fault,
        "windows_passed": plan.windows_passed,
        "memory_limit": plan.facts.state_limit,
        "stateful_layers": sorted({mixer.layer for mixer in plan.facts.mixers.found}),
        "trials": [
            {"strategy": t.strategy, "accepted": t.accepted, "error": t.error, "reason": t.reason} for t in plan.trials
        ],
    }


def plan_of(target: nn.Module, strategy: str | None = None, memory_limit: int | None = None) -> Plan:
    """The kept plan, or a new one where there is none, or the dtype, device or attention has changed since."""
    key = _key(target)
    plan = _plans.get(target)
    if (
        plan is None
        or plan.key != key
        or (strategy is not None and plan.forced != strategy)
        or (memory_limit is not None and plan.facts.state_limit != memory_limit)
    ):
        again = plan.forced if plan is not None and plan.key == key else None
        forced = strategy or again or os.environ.get(FORCED) or None
        if memory_limit is None:
            memory_limit = _state_bytes() if plan is None else plan.facts.state_limit
        plan = _measure(target, key, forced, memory_limit)
        _plans[target] = plan
        log.info("%s", _line(target, plan))
    if plan.strategy is None:
        raise RuntimeRefusal(plan.refusal())
    return plan


def lock_of(target: nn.Module) -> Any:
    """The lock under which a model is verified. Copies of this package in one process share it."""
    shared = sys.modules.setdefault("_compatfix_runtime_locks", types.ModuleType("_compatfix_runtime_locks"))
    locks = shared.__dict__.setdefault("locks", weakref.WeakKeyDictionary())
    with shared.__dict__.setdefault("guard", threading.Lock()):
        return locks.setdefault(target, threading.RLock())


def _state_bytes() -> int | None:
    """The limit that the environment sets."""
    told = os.environ.get(STATE_BYTES) or None
    if told is not None and (not told.isdecimal() or int(told) == 0):
        raise RuntimeRefusal(f"{STATE_BYTES}={told!r} is no number of bytes; give a positive whole number, or unset it")
    return None if told is None else int(told)


def _measure(target: nn.Module, key: tuple[Any, ...], forced: str | None, state_limit: int | None) -> Plan:
    candidates = [strategy for strategy in STRATEGIES if forced in (None, strategy.name)]
    if not candidates:
        known = ", ".join(repr(strategy.name) for strategy in STRATEGIES)
        raise RuntimeRefusal(f"no verification strategy is called {forced!r}; there are {known}")
    config: Any = getattr(target, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    with untouched(target):
        base = baseline(target, config, dtype_of(target))
        base = replace(base, facts=replace(base.facts, state_limit=state_limit))
        chosen, trials = _try(candidates, base)
    return Plan(
        strategy=chosen,
        facts=base.facts,
        key=key,
        noise=base.noise,
        noise_floor=base.noise_floor,
        fault=base.fault,
        windows_passed=base.reference.windows_passed,
        trials=tuple(trials),
        forced=forced,
    )


def _try(candidates: list[Strategy], base: Baseline) -> tuple[Strategy | None, list[Trial]]:
    """Strategies in the order of their cost, until one agrees."""
    trials: list[Trial] = []
    noise = max(base.noise, base.noise_floor)
    if base.noise >= base.fault:
        reason = (
            f"plain decoding one token at a time differs from one forward by {base.noise:.3g}, no less than a planted "
            f"fault does ({base.fault:.3g}); nothing can be told"
        )
        return None, [Trial(strategy.name, False, None, reason) for strategy in candidates[:1]]
    for strategy in candidates:
        obstacle = strategy.obstacle(base.facts)
        if obstacle:
            trials.append(Trial(strategy.name, False, None, obstacle))
            continue
        try:
            error = max(error_of(form, base) for form in strategy.forms(base.facts))
        except (MemoryError, torch.cuda.OutOfMemoryError):
            raise  # passes with the memory, and says nothing about the strategy
        except Exception as raised:  # whatever a model raises under a strategy is a reason against it
            trials.append(Trial(strategy.name, False, None, f"{type(raised).__name__}: {raised}"))
            continue
        # Logits of a short dtype cannot agree better than their own rounding: then half the distance must do.
        part = 4 if error <= 2 * base.noise_floor else 8
        if error > 4 * noise:
            reason = f"error e = {error:.3g} exceeds 4n = {4 * noise:.3g}"
        elif error > base.fault / part:
            reason = f"error e = {error:.3g} exceeds f/{part} = {base.fault / part:.3g}"
        else:
            trials.append(Trial(strategy.name, True, error))
            return strategy, trials
        trials.append(Trial(strategy.name, False, error, reason))
    return None, trials


def _key(target: nn.Module) -> tuple[Any, ...]:
    """What a measurement holds for: dtype, device, attention implementation, and whether layers drop out."""
    first = next((p for p in target.parameters() if p.dtype.is_floating_point), None)
    if first is None:
        raise RuntimeRefusal(f"{type(target).__name__} has no floating-point parameter; its dtype is unknown")
    implementation = getattr(getattr(target, "config", None), "_attn_implementation", None)
    return getattr(target, "dtype", first.dtype), first.device, str(implementation), target.training


def _line(target: nn.Module, plan: Plan) -> str:
    numbers = f"n = {plan.noise:.2g}, f = {plan.fault:.2g}, {plan.facts.dtype}"
    if plan.strategy is None:
        return f"{type(target).__name__}: no verification strategy agrees with plain decoding ({numbers})"
    return f"{type(target).__name__}: verifying by {plan.strategy.name!r} (e = {plan.trials[-1].error:.2g}, {numbers})"


def dtype_of(target: nn.Module) -> torch.dtype:
    """The dtype in which the target computes: that of its embeddings' output. Weights may be stored in another."""
    key, plan = _key(target), _plans.get(target)
    if plan is not None and plan.key == key:
        return plan.facts.dtype
    try:
        embeddings = input_embeddings(target)
    except RuntimeRefusal:  # a wrapper that passes calls on and nothing else
        wrapped: torch.dtype = key[0]
        return wrapped
    device = next((weight.device for weight in embeddings.parameters()), key[1])
    with torch.no_grad():
        one = torch.zeros(1, 1, dtype=torch.long, device=device if device.type != "meta" else torch.device("cpu"))
        dtype: torch.dtype = embeddings(one).dtype
    return dtype
