"""What to validate and how much of it, and the tasks that this comes to. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from compatfix.validate.judge_sampling import MODES

TASK_SECONDS = 600.0
SIDE_PROMPTS, SIDE_TOKENS = 8, 32
BF16_PROMPTS, BF16_TOKENS = 4, 24
SLICE_PROMPTS, SLICE_TOKENS = 4, 24
# Share of the time limit after which no further repetition is begun.
TIMED_SHARE = 0.8


@dataclass(frozen=True)
class ValidateRequest:
    """What to validate and how much of it.

    `tree`, `target`, `draft` are directories; without a draft one of the usual shape is made up. `ladder_tree` is the
    unpatched tree that the ladder climbs from, None for no ladder. `loader` overrides the class that the tree loads.
    `jobs` tasks run side by side. `dtype`, `device`, `attn` (an attention implementation) and `device_map` do
    not count on the tiny model; `values` says what fills a slice. With a `temperature`, `samples`
    texts per mode are sampled too, on the tiny model. `entries`, `arguments` and `results` are what the user
    said of entry points, as `roles.parse_choices` reads it. `texts` are the prompts for real weights, in place of
    a few; `repetitions` is how often each is timed in every mode, 0 for not at all.
    `long_run` above 0 is the length of one more text per mode, on the tiny model.
    """

    tree: str
    target: str
    draft: str | None = None
    seed: int = 0
    prompts: int = 24
    tokens: int = 64
    budgets: tuple[int, ...] = (32, 64)
    on: Literal["tiny", "slice", "weights"] = "tiny"
    ladder_tree: str | None = None
    loader: str | None = None
    bf16: bool = True
    jobs: int = 2
    time_limit: float | None = TASK_SECONDS
    memory_limit: int | None = None
    dtype: str | None = None
    device: str | None = None
    attn: str | None = None
    device_map: str | None = None
    values: Literal["random", "checkpoint"] = "random"
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


@dataclass(frozen=True)
class Task:
    """`needs_right` tasks are not started once the tree is known to be wrong: they would only repeat it."""

    name: str
    args: Mapping[str, Any]
    needs_right: bool = True


def tasks_of(request: ValidateRequest) -> list[Task]:
    """Longest first. The prompts are dealt out to as many tasks as run side by side."""
    shares = max(1, min(request.jobs, request.prompts))
    size = {"tokens": request.tokens}
    tasks = [
        Task("losslessness", {**size, "indices": list(range(share, request.prompts, shares))}, needs_right=False)
        for share in range(shares)
    ]
    if request.ladder_tree is not None:
        tasks.append(Task("ladder", {}, needs_right=False))
    tasks.append(Task("situations", {"prompts": SIDE_PROMPTS, "tokens": SIDE_TOKENS}))
    if request.bf16:
        tasks.append(Task("bf16", {"prompts": BF16_PROMPTS, "tokens": BF16_TOKENS}))
    tasks.append(Task("faults", {}))
    if request.temperature is not None:
        sampler = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
        # A task for each mode: a time limit that is enough for one need not be for all.
        size = {"texts": request.samples, "shares": MODES}
        tasks += [Task("sampling", {**sampler, **size, "share": share}) for share in range(MODES)]
    if request.long_run:
        tasks.append(Task("long-run", {"tokens": request.long_run}))
    if request.on == "weights":
        own = {"prompts": len(request.texts) or SIDE_PROMPTS, "texts": list(request.texts)}
        tasks.append(Task("weights", {**own, "tokens": request.tokens}))
    return tasks


def sliced_task(request: ValidateRequest) -> Task:
    return Task("slice", {"prompts": SLICE_PROMPTS, "tokens": SLICE_TOKENS, "values": request.values})


def timed_task(request: ValidateRequest) -> Task:
    own = {"prompts": len(request.texts) or SIDE_PROMPTS, "texts": list(request.texts), "tokens": request.tokens}
    sampler = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
    seconds = None if request.time_limit is None else TIMED_SHARE * request.time_limit
    return Task(
        "measure", {**own, **sampler, "repetitions": request.repetitions, "seconds": seconds}, needs_right=False
    )
