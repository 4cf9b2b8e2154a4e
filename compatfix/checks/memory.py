"""CF610 and CF611: whether a run fits, and what a long prefill keeps for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.checks.finding import PATCH, found
from compatfix.memory_plan import gigabytes
from compatfix.model import Finding
from compatfix.profiles import Inspection

# Below this a prefill's hidden states are no concern.
LARGE = 4e9


def does_not_fit(inspection: Inspection) -> Iterator[Finding]:
    plan = inspection.memory
    if plan.fits is False:
        yield found("CF610", plan.verdicts[0], "read", details={"bytes": plan.total})


def all_hidden_states(inspection: Inspection) -> Iterator[Finding]:
    everything, needed = inspection.memory.item("hidden long"), inspection.memory.item("hidden long needed")
    if everything is None:
        everything, needed = inspection.memory.item("hidden"), inspection.memory.item("hidden needed")
    if everything is None or needed is None or everything.bytes < LARGE:
        return
    message = f"{everything.text} take {gigabytes(everything.bytes)}; the draft needs {gigabytes(needed.bytes)} of it"
    yield found("CF611", message, "read", fix=PATCH, details={"all": everything.bytes, "needed": needed.bytes})
