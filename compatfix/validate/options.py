"""What to validate, how much of it, on what, and in which environment. Plain data, free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ValidationOptions:
    """How much to measure, on what, and in which environment; limits are per step, in seconds and bytes.

    With a `temperature` (above 0), sampling is judged too: `samples` texts per mode, `top_p` 1 and `top_k` 0 for none.
    `texts` are the prompts for real weights; without any, a few of the tool's own. Each is timed `repetitions` times
    in every mode, 0 for not at all. `entries`, `arguments` and `results` are what the user said of entry points, as
    `roles.parse_choices` reads it.
    `long_run` above 0 is the length of one more text per mode, on the tiny model.
    `dtype`, `attn` (an attention implementation), `device` and `device_map` are what the own run is started with;
    they do not count on the tiny model. `values` fill a slice.
    """

    on: Literal["tiny", "slice", "weights"] = "tiny"
    prompts: int = 24
    tokens: int = 64
    budgets: tuple[int, ...] = (32, 64)
    seed: int = 0
    python: str | None = None
    time_limit: float | None = 600
    memory_limit: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    samples: int = 96
    texts: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    repetitions: int = 3
    long_run: int = 0
    dtype: str | None = None
    attn: str | None = None
    device: str | None = None
    device_map: str | None = None
    values: Literal["random", "checkpoint"] = "random"


@dataclass(frozen=True, kw_only=True)
class ValidateRequest(ValidationOptions):
    """The same for one tree, with what a user does not choose.

    `tree`, `target`, `draft` are directories; without a draft one of the usual shape is made up. `ladder_tree` is the
    unpatched tree that the ladder climbs from, None for no ladder. `loader` overrides the class that the tree loads.
    `jobs` tasks run side by side.
    """

    tree: str
    target: str
    draft: str | None = None
    ladder_tree: str | None = None
    loader: str | None = None
    bf16: bool = True
    jobs: int = 2
