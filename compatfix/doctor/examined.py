"""Everything that one examination found, before it is judged or shown. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compatfix.doctor.facts import Attention, Health, Machine, Observed
from compatfix.memory_plan import RunPlan
from compatfix.model import Finding
from compatfix.profiles import TargetProfile


@dataclass(frozen=True)
class Examined:
    """What could be learnt; a part is None where its job died, and then `died` says how.

    `quantised` is the method that the target's checkpoint is stored by.
    """

    packages: tuple[Health, ...]
    python: str
    machine: Machine | None = None
    target: TargetProfile | None = None
    observed: Observed | None = None
    attention: Attention | None = None
    plan: RunPlan | None = None
    died: tuple[Finding, ...] = ()
    no_worker: str | None = None

    @property
    def by_name(self) -> Mapping[str, Health]:
        return {package.name: package for package in self.packages}

    def state(self, package: str) -> str:
        """ "works", "broken" or "absent"."""
        found = self.by_name.get(package)
        return found.state if found is not None else "absent"
