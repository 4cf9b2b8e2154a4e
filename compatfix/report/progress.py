"""Progress on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compatfix.process import OnStep, Step


@contextmanager
def progress() -> Iterator[OnStep]:
    """Yields a callback that shows each step on standard error while the work runs."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.status import Status

    console = Console(stderr=True, markup=False)
    with Status("starting the worker", console=console) as status:
        yield _updater(status.update)


def _updater(update: Callable[[str], None]) -> OnStep:
    lock = threading.Lock()

    def on_step(step: Step) -> None:
        # Two jobs report at once; rich's status is not made for that.
        with lock:
            update(str(step).replace("[", "\\["))

    return on_step
