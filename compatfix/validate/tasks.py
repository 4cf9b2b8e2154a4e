"""The tasks that a validation comes to. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compatfix.validate.judge_sampling import MODES
from compatfix.validate.options import ValidateRequest

SIDE_PROMPTS, SIDE_TOKENS = 8, 32
BF16_PROMPTS, BF16_TOKENS = 4, 24
SLICE_PROMPTS, SLICE_TOKENS = 4, 24
# Share of the time limit after which no further repetition is begun.
TIMED_SHARE = 0.8


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
