"""The doctor's jobs in the worker, one for each thing that can crash by itself.

Args of every job but "machine" and "health": `target` (a directory, or None for a small model of a common class),
`loader`, `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.doctor.attention import implementations, try_attention
from compatfix.doctor.facts import Observed, TargetFacts
from compatfix.doctor.fast_paths import attempt, observe
from compatfix.errors import UsageError
from compatfix.introspect.classes import CAUSAL, config_from_dict, resolve
from compatfix.introspect.configfile import read_target_config, text_config
from compatfix.introspect.dtypes import quantisation_of
from compatfix.introspect.probes import Bench
from compatfix.introspect.probes.strategy import strategy_is_exact
from compatfix.introspect.target import static_profile
from compatfix.introspect.tiny import TinyError, build_tiny_target
from compatfix.introspect.words import one_line
from compatfix.serial import to_plain
from compatfix.worker import JobError, Progress

# What is measured without a target: full attention, and nothing else that could differ.
COMMON = {"model_type": "qwen3"}
NAMED_ATTENTION = ("_attn_implementation", "attn_implementation")


def describe(args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """The target on the meta device: shapes, states, dtype. Raises JobError where it has no class here."""
    config = _config(args)
    found = static_profile(config, str(args["target"]), progress, loader=_loader(args))
    plain: dict[str, Any] = to_plain(TargetFacts(found, quantisation_of(config)[1]))
    return plain


def watch(args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """An Observed forward of the tiny model, and the `strategy` by which the runtime would verify."""
    progress("building a tiny model")
    built = attempt(lambda: _bench(args))
    if isinstance(built, Observed):
        return {"observed": to_plain(built), "strategy": None}
    progress("finding the strategy")
    value = strategy_is_exact(built).value
    progress("watching a forward")
    return {"observed": to_plain(observe(built)), "strategy": value.get("strategy") if value else None}


def attend(args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Attention trials. Further args: `names`, or None for every known one; `extra` names. Raises JobError."""
    config = _config(args)
    names = args.get("names") or implementations(args.get("extra") or ())
    progress("building a tiny model")
    try:
        bench = _bench(args)
    except (TinyError, RuntimeError, ValueError) as error:
        raise RuntimeError(f"no tiny model to try attention on: {one_line(error)}") from error
    named = [part[name] for part in (config, text_config(config)) for name in NAMED_ATTENTION if part.get(name)]
    default = str(named[0]) if named else bench.target.attn
    plain: dict[str, Any] = to_plain(try_attention(bench, tuple(names), default, progress))
    return {**plain, "known": list(implementations(args.get("extra") or ()))}


def _bench(args: Mapping[str, Any]) -> Bench:
    config = config_from_dict(_config(args))
    seed = int(args.get("seed") or 0)
    return Bench(build_tiny_target(config, _loader(args), seed=seed), resolve(config, _loader(args)).config, seed)


def _config(args: Mapping[str, Any]) -> dict[str, Any]:
    if args.get("target") is None:
        return dict(COMMON)
    try:
        return read_target_config(args["target"])
    except UsageError as error:
        raise JobError(str(error)) from error


def _loader(args: Mapping[str, Any]) -> str:
    return str(args.get("loader") or CAUSAL)
