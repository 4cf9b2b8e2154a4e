"""What a task really ran, as the tree's own runtime sees it: what patched code later compares itself with."""

from __future__ import annotations

import sys
from typing import Any

from compatfix.introspect.classes import config_from_dict
from compatfix.introspect.configfile import read_config
from compatfix.validate.bench import Bench
from compatfix.validate.caches import RUNTIME

ON_WEIGHTS = ("weights", "measure")


def observed(bench: Bench, args: dict[str, Any]) -> dict[str, Any] | None:
    """The runtime's observation, with the real configs; None where the tree carries no runtime that can tell.

    The runtime in the tree makes it, so that judged and running code are seen by the same eyes.
    """
    seen = sys.modules.get(f"{RUNTIME}.surroundings")
    runtime = sys.modules.get(RUNTIME)
    if seen is None or runtime is None:
        return None
    real = args["task"] in ON_WEIGHTS
    strategy = runtime.describe(bench.target).get("strategy")
    run: dict[str, Any] = seen.observed(bench.target, bench.draft, strategy, weights=real)
    if not real:
        for part in ("target", "draft"):
            run[part]["config"] = _real_config(seen, args.get(part))
    on = "weights" if real else "slice" if args["task"] == "slice" else "tiny"
    return {"on": on, **run}


def _real_config(seen: Any, place: str | None) -> dict[str, Any] | None:
    """What the real config says; None where there is none, or this transformers cannot read it."""
    if place is None:
        return None
    try:
        found: dict[str, Any] | None = seen.config_of(config_from_dict(read_config(place)))
    except Exception:  # whatever a config class raises: then the config is not compared
        return None
    return found
