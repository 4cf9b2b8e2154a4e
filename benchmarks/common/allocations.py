"""Bytes that a piece of code allocates on the CPU: what is alive at its marks, and the peak behind the first of them.

Read from the allocator's own events (torch.profiler's memory events), so that what operators allocate inside themselves
is counted as well as tensors. The profiler knows the size of a freed block only if it saw it allocated: whatever the
code may free must be made within, before the first mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.profiler import ProfilerActivity, profile, record_function

MARK = "mark: "


@dataclass
class Allocated:
    """Bytes relative to what was alive at the first mark."""

    peak: int = 0
    at: dict[str, int] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        with record_function(MARK + name):
            pass


@contextmanager
def allocations() -> Iterator[Allocated]:
    """Counts within the block; the result is filled in when it is left."""
    found = Allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield found
    alive, begun = 0, None
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name().startswith(MARK):
            begun = alive if begun is None else begun
            found.at[event.name().removeprefix(MARK)] = alive - begun
        elif event.name() == "[memory]":
            alive += event.nbytes()
            if begun is not None:
                found.peak = max(found.peak, alive - begun)
