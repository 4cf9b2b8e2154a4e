"""Bytes that a piece of code allocates on the CPU: its peak, and what it leaves alive.

Read from the allocator's own events (torch.profiler's memory events), so that what operators allocate inside themselves
is counted as well as tensors. Only what is allocated within the block counts, and only the CPU's allocator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile


@dataclass
class Allocated:
    peak: int = 0
    left: int = 0


@contextmanager
def allocations() -> Iterator[Allocated]:
    """Fills in the result when the block is left."""
    found = Allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield found
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        found.left += event.nbytes()
        found.peak = max(found.peak, found.left)
