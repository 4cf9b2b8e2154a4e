"""`doctor`: runs its jobs in the worker, each by itself, and makes one report of what they found. Torch-free."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compatfix.doctor.examined import Examined
from compatfix.doctor.facts import Attention, Health, Machine, Observed, TargetFacts, Trial
from compatfix.doctor.findings import findings_of
from compatfix.doctor.statements import statements_of
from compatfix.errors import UsageError
from compatfix.memory_plan import RunPlan, needs_of, plan_run
from compatfix.model import Finding, Report
from compatfix.packages import PACKAGES, QUANTISATION
from compatfix.process import OnStep, Worker, WorkerFailed, worker
from compatfix.profiles import DraftProfile, TargetProfile
from compatfix.serial import from_plain, to_plain

HEALTH, MACHINE = "compatfix.doctor.health:run", "compatfix.doctor.machine:run"
DESCRIBE, WATCH, ATTEND = (f"compatfix.doctor.jobs:{name}" for name in ("describe", "watch", "attend"))
# Codes that a worker names at the end of its refusal: the environment lacks something, the input is not bad.
LACKING = re.compile(r"\s*\((CF005|CF006)\)$")
CONTEXT = 4096
TREE_BUDGET = 64
IMPORT_SECONDS = 20.0


@dataclass(frozen=True)
class DoctorOptions:
    """`attention` names implementations to try besides the known ones; `offload` is where weights would be offloaded.

    `import_limit` seconds for each import, `time_limit` for each other step.
    """

    context: int = CONTEXT
    tree_budget: int = TREE_BUDGET
    attention: tuple[str, ...] = ()
    offload: str = "."
    seed: int = 0
    python: str | None = None
    import_limit: float = IMPORT_SECONDS
    time_limit: float | None = None
    memory_limit: int | None = None


def doctored(target: str | None, draft: str | None, options: DoctorOptions, on_step: OnStep) -> Report:
    """Raises UsageError for bad input; whatever the environment does is a finding."""
    profile = _check_input(target, draft)
    subject = {name: path for name, path in (("target", target), ("draft", draft)) if path is not None}
    with worker(options.python) as process:
        try:
            process.wait_ready()
        except (UsageError, WorkerFailed) as failure:
            examined = _without_worker(options, str(failure))
        else:
            examined = _examine(Jobs(process, options, on_step), target, profile)
    return report_of(subject, examined)


def report_of(subject: Mapping[str, Any], examined: Examined) -> Report:
    """Pure: what was examined, judged and ready to be shown."""
    return Report(
        "doctor",
        subject,
        statements=statements_of(examined),
        findings=findings_of(examined),
        sections={"doctor": _section(examined)},
    )


def conclusion(report: Report) -> str:
    """One line: whether the environment is fit, and if not, how much stands in the way."""
    from compatfix.conclusion import blocking_findings

    count = len(blocking_findings(report))
    if not count:
        return "doctor: fit" + ("" if "target" in report.subject else " (without a target: name one with --target)")
    return f"doctor: not fit ({count} finding{'s' * (count > 1)} that stop{'s' * (count == 1)} a run)"


class Jobs:
    """The worker's jobs; one that dies leaves a finding in `died` and None in place of its result."""

    def __init__(self, process: Worker, options: DoctorOptions, on_step: OnStep) -> None:
        self._process, self.options, self._on_step = process, options, on_step
        self.died: list[Finding] = []

    def run(self, job: str, args: Mapping[str, Any], *, quiet: bool = False) -> Any:
        limits: dict[str, Any] = {"time_limit": self.options.time_limit, "memory_limit": self.options.memory_limit}
        if job == HEALTH:  # it has a limit for each import
            limits["time_limit"] = None
        try:
            return self._process.run(job, args, on_step=self._on_step, **limits)
        except WorkerFailed as failure:
            if not quiet:
                self.died.append(failure.finding)
            return failure.finding.message if quiet else None


def _check_input(target: str | None, draft: str | None) -> DraftProfile | None:
    from compatfix.introspect.configfile import read_target_config
    from compatfix.introspect.draft import read_draft

    if target is not None:
        read_target_config(target)
    if draft is None:
        return None
    profile = read_draft(draft)
    if profile.missing:
        raise UsageError(f"{draft} holds no DFlash draft: its config lacks {', '.join(profile.missing)}")
    return profile


def _examine(jobs: Jobs, target: str | None, draft: DraftProfile | None) -> Examined:
    options = jobs.options
    packages = _packages(jobs.run(HEALTH, {"seconds": options.import_limit}))
    raw = jobs.run(MACHINE, {"disk": options.offload})
    machine = None if raw is None else from_plain(Machine, raw)
    python = machine.python if machine is not None else ""
    examined = Examined(packages, python, machine)
    if target is not None:
        examined = _with_target(jobs, examined, target, draft)
    if target is None or examined.target is not None:
        # A class that cannot be built here has nothing to try attention on.
        examined = replace(examined, attention=_attention(jobs, target))
    return replace(examined, died=tuple(jobs.died))


def _with_target(jobs: Jobs, examined: Examined, target: str, draft: DraftProfile | None) -> Examined:
    args = {"target": target, "seed": jobs.options.seed}
    try:
        described = jobs.run(DESCRIBE, args)
    except UsageError as error:
        lacking = LACKING.search(str(error))
        if lacking is None:
            raise
        fix = "pip install --upgrade transformers" if lacking[1] == "CF005" else None
        jobs.died.append(Finding(lacking[1], "error", "measured", LACKING.sub("", str(error)), fix=fix))
        return examined
    if described is None:
        return examined
    facts = from_plain(TargetFacts, described)
    watched = jobs.run(WATCH, args)
    profile = facts.target if watched is None else replace(facts.target, strategy=watched["strategy"])
    observed = None if watched is None else from_plain(Observed, watched["observed"])
    plan = _plan(jobs.options, profile, draft, facts.weight_bytes, examined.machine)
    return replace(examined, target=profile, observed=observed, plan=plan)


def _plan(
    options: DoctorOptions,
    target: TargetProfile,
    draft: DraftProfile | None,
    weight_bytes: float | None,
    machine: Machine | None,
) -> RunPlan:
    devices = machine.devices if machine is not None else ()
    needs = needs_of(target, draft, weight_bytes)
    return plan_run(needs, devices, context=options.context, tree_budget=options.tree_budget)


def _attention(jobs: Jobs, target: str | None) -> Attention | None:
    """All implementations in one job; where that dies, each in a job of its own, so that the culprit is known."""
    args = {"target": target, "seed": jobs.options.seed, "extra": list(jobs.options.attention)}
    found = jobs.run(ATTEND, args, quiet=True)
    if isinstance(found, Mapping):
        return from_plain(Attention, found)
    first = jobs.run(ATTEND, {**args, "names": ["eager"]})
    if first is None:
        return None
    trials: list[Trial] = []
    base = from_plain(Attention, first)
    for name in first["known"]:
        alone = jobs.run(ATTEND, {**args, "names": [name]}, quiet=True)
        if isinstance(alone, Mapping):
            trials += from_plain(Attention, alone).trials
        else:
            trials += [Trial(name, form, "refused", f"it ends the process: {alone}") for form in ("float", "bool")]
    return replace(base, trials=tuple(trials))


def _packages(raw: Any) -> tuple[Health, ...]:
    return tuple(from_plain(Health, entry) for entry in raw or ())


def _without_worker(options: DoctorOptions, why: str) -> Examined:
    """Which package it is that keeps torch or transformers from being imported: asked without either."""
    root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    python = options.python or sys.executable
    command = [python, "-m", "compatfix.doctor.health", str(options.import_limit)]
    # The working directory comes first on the path of `-m`; somewhere empty cannot shadow anything.
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=os.sep, env={**os.environ, "PYTHONPATH": search}
    )
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise UsageError(why) from None
    reason = why.partition("cannot import torch and transformers: ")[2] or why
    return Examined(_packages(told["packages"]), told["python"], no_worker=reason)


def _section(examined: Examined) -> dict[str, Any]:
    """The report's section "doctor": rows for tables and for machines."""
    wanted = _wanted(examined)
    rows = []
    for spec in PACKAGES:
        found = examined.by_name.get(spec.name)
        if found is not None:
            row = {"purpose": spec.purpose, "wanted": spec.name in wanted, "command": spec.command}
            rows.append({**to_plain(found), **row})
    plan = examined.plan
    memory = None if plan is None else {**to_plain(plan), "total": plan.total, "verdict": plan.verdict}
    return {
        "packages": rows,
        "machine": to_plain(examined.machine),
        "observed": to_plain(examined.observed),
        "attention": to_plain(examined.attention),
        "memory": memory,
    }


def _wanted(examined: Examined) -> set[str]:
    return set(_wanted_names(examined))


def _wanted_names(examined: Examined) -> Iterator[str]:
    yield from ("accelerate", "flash-attn")
    if examined.observed is not None:
        yield from (path.package for path in examined.observed.paths)
    if examined.target is not None:
        yield from QUANTISATION.get(examined.target.quantised or "", ())
