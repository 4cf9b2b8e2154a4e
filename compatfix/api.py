"""What the command line and Python users call: inspect, patch, validate, gate.

Every function returns plain data and prints nothing. Bad input raises `compatfix.errors.UsageError`; what stands in the
way of the code under test is a finding in the result, never an exception.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compatfix import __version__
from compatfix.conclusion import conclusion, green, worst_at_least
from compatfix.errors import UsageError
from compatfix.gating import Patching, RuleChoice
from compatfix.hub.resolve import Model, located, places
from compatfix.model import Finding, Level, PatchPlan, Report, Scope
from compatfix.validate.options import ValidationOptions

if TYPE_CHECKING:
    from compatfix.attest.fingerprint import Used
    from compatfix.diagnose.front import DiagnoseOptions
    from compatfix.doctor.front import DoctorOptions
    from compatfix.process import OnStep
    from compatfix.report.baseline import Baseline

__all__ = [
    "apply_patch",
    "blocking",
    "conclusion",
    "diagnose",
    "doctor",
    "gate",
    "green",
    "inspect",
    "plan_patch",
    "settle",
    "tree_directory",
    "undo",
    "validate",
    "worst_at_least",
]

CONTEXT = 32768
TREE_BUDGET = 64


def _silent(step: Any) -> None: ...


def inspect(
    model: Model,
    *,
    draft: Model | None = None,
    context: int = CONTEXT,
    tree_budget: int = TREE_BUDGET,
    devices: Sequence[float] = (),
    seed: int = 0,
    python: str | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    on_step: OnStep = _silent,
) -> Report:
    """Profiles a target, and its draft, without loading weights: class, cache, behaviour, pairing, memory, environment.

    Args: `context` tokens and `tree_budget` nodes are those of the memory plan, `devices` sizes in GB to hold it
    against besides those present; `seed` is that of the tiny model; limits are per step, in seconds and bytes.
    Models may be directories or hub ids (compatfix.hub). Raises: UsageError for bad input (no directory, a broken
    config.json, an unknown model type, remote code, a hub that does not answer).
    """
    from compatfix.checks import run_checks
    from compatfix.introspect.configfile import read_config, read_target_config
    from compatfix.process import WorkerFailed, worker
    from compatfix.profiles import Inspection
    from compatfix.serial import from_plain

    started = Clock()
    at = places(model, draft, on_step=on_step)
    path, draft_path = at.paths
    subject = {"target": path} | ({"draft": draft_path} if draft_path is not None else {})
    args = {
        "target": path,
        "draft": draft_path,
        "context": context,
        "tree_budget": tree_budget,
        "devices": list(devices),
        "seed": seed,
    }
    try:
        with at.errors():
            read_target_config(path)
            if draft_path is not None:
                read_config(draft_path)
            with worker(python) as process:
                found = process.run("inspect", args, on_step=on_step, time_limit=time_limit, memory_limit=memory_limit)
    except WorkerFailed as failure:
        return started.stamp(at.named(Report("inspect", subject, findings=(failure.finding,))))
    inspection = from_plain(Inspection, found)
    findings = run_checks(inspection)
    report = Report(
        "inspect",
        subject,
        statements=inspection.statements,
        answers=inspection.target.answers,
        findings=findings,
        sections={"inspection": found},
        next_step=_next_step(findings, at.options),
    )
    return started.stamp(at.named(report))


def validate(
    tree: str | Path,
    target: Model,
    *,
    draft: Model | None = None,
    options: ValidationOptions | None = None,
    on_step: OnStep = _silent,
    used: Used | None = None,
) -> Report:
    """Runs the tree as it is on disk against a target and judges it by scope.

    Models are directories or hub ids, as for `inspect`. Raises: UsageError for bad input. Whatever the tree or the
    model does is a finding.
    """
    from compatfix.gating import judge

    started = Clock()
    root = tree_directory(tree)
    chosen = options or ValidationOptions()
    at = places(target, draft, on_step=on_step, weights=chosen.on == "weights")
    with at.errors():
        report = at.named(judge("validate", root, *at.paths, chosen, on_step, used=used))
    return started.stamp(replace(report, subject={"tree": str(tree), **report.subject}))


def gate(
    tree: str | Path,
    target: Model,
    *,
    draft: Model | None = None,
    options: ValidationOptions | None = None,
    patching: Patching | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    allow_dirty: bool = False,
    ladder: bool = True,
    on_step: OnStep = _silent,
    used: Used | None = None,
) -> Report:
    """Judges the tree that will really run: as it is on disk, which must have no fix pending, or patched first.

    Args: `patching` judges a patched copy ("copy") or patches the tree ("in-place"); `ladder` tells the story of the
    unpatched code too; `used` is told what the run really read. Models are directories or hub ids, as for `inspect`.
    Raises: UsageError for bad input.
    """
    from compatfix.gating import gated

    started = Clock()
    root = tree_directory(tree)
    rules = RuleChoice(tuple(select), tuple(ignore), allow_dirty)
    chosen = options or ValidationOptions()
    at = places(target, draft, on_step=on_step, weights=chosen.on == "weights")
    with at.errors():
        report = at.named(gated(root, *at.paths, chosen, patching, rules, ladder, on_step, used))
    return started.stamp(replace(report, subject={"tree": str(tree), **report.subject}))


def diagnose(
    tree: str | Path,
    target: Model,
    draft: Model,
    *,
    options: DiagnoseOptions | None = None,
    patched: bool = False,
    on_step: OnStep = _silent,
) -> Report:
    """Why few drafted tokens are accepted: suspects toggled on this tree, or a `patched` copy, with real weights.

    A hub id needs all of its weights in the hub's cache. Raises: UsageError for bad input, and where the pair cannot
    be run at all.
    """
    from compatfix.diagnose.front import DiagnoseOptions, diagnosed

    started = Clock()
    chosen = options or DiagnoseOptions()
    root = tree_directory(tree)
    at = places(target, draft, weights=True, on_step=on_step)
    target_path, draft_path = at.paths
    assert draft_path is not None
    if chosen.reference is not None:
        chosen = replace(chosen, reference=located(chosen.reference, weights=True, on_step=on_step).path)
    with at.errors():
        report = at.named(diagnosed(root, target_path, draft_path, chosen, patched=patched, on_step=on_step))
    return started.stamp(replace(report, subject={"tree": str(tree), **report.subject}))


def doctor(
    target: Model | None = None,
    *,
    draft: Model | None = None,
    options: DoctorOptions | None = None,
    on_step: OnStep = _silent,
) -> Report:
    """Whether the environment is fit, for `target` or in general: packages, fast paths, attention, devices, memory.

    Models are directories or hub ids, as for `inspect`. Raises: UsageError for bad input. Whatever the environment
    does is a finding.
    """
    from compatfix.doctor.front import DoctorOptions, doctored

    started, chosen = Clock(), options or DoctorOptions()
    if target is None:
        if draft is not None:
            raise UsageError("--draft needs --target: what a draft costs is planned beside its target")
        return started.stamp(doctored(None, None, chosen, on_step))
    at = places(target, draft, on_step=on_step)
    with at.errors():
        report = doctored(*at.paths, chosen, on_step)
    return started.stamp(at.named(replace(report, next_step=f"compatfix gate TREE {at.options} --patch copy")))


def settle(
    report: Report, required: Sequence[Scope], fail_on: Level = "error", baseline: tuple[Baseline, str] | None = None
) -> Report:
    """The report with what it is to be held to: required scopes, the level that counts, and known findings set aside.

    `baseline` comes with the name to tell it by. A baseline never changes a verdict.
    """
    settled = replace(report, required=tuple(required), fail_on=fail_on)
    if baseline is None:
        return settled
    from compatfix.report.baseline import with_baseline

    return with_baseline(settled, *baseline)


def plan_patch(
    path: str | Path, *, select: Sequence[str] = (), ignore: Sequence[str] = (), force_runtime: bool = False
) -> PatchPlan:
    """What `patch` would do to the tree at `path`; reads only. Codes or names of rules select and ignore.

    Raises: UsageError where there is no such tree, or no Python file in it.
    """
    from compatfix.rewrites import plan

    return plan(tree_directory(path), select=select, ignore=ignore, force=force_runtime)


def apply_patch(plan: PatchPlan, *, allow_dirty: bool = False) -> tuple[str, ...]:
    """Writes a plan, atomically and with a journal; returns the paths written. Raises UsageError, before any write."""
    from compatfix.rewrites import apply

    return apply(plan, allow_dirty=allow_dirty).paths


def undo(path: str | Path, *, force: bool = False) -> tuple[list[str], list[str]]:
    """Takes the last patch of the tree at `path` back, byte for byte; returns the paths restored and those removed."""
    from compatfix.rewrites import undo

    root = tree_directory(path)
    changed = undo(root, force=force)
    there = {name: (root / name).exists() for name in changed}
    return [name for name in changed if there[name]], [name for name in changed if not there[name]]


def blocking(plan: PatchPlan) -> tuple[Finding, ...]:
    """What a patch leaves that stands in the way: its errors and warnings, not its notes."""
    return tuple(finding for finding in plan.unfixed if finding.level != "note")


def tree_directory(path: str | Path) -> Path:
    """The directory of a tree, or UsageError."""
    root = Path(path)
    if "://" in str(path) or str(path).startswith(("git@", "https:/", "http:/")):
        raise UsageError(f"{path} is an address; clone the repository first and give its directory")
    if not root.exists():
        raise UsageError(f"{path} does not exist")
    if not root.is_dir():
        raise UsageError(f"{path} is a file; give the directory of the tree")
    return root


def _next_step(findings: Sequence[Finding], target: str) -> str:
    misfits = [finding for finding in findings if finding.code.startswith("CF4") and finding.level == "error"]
    if misfits:
        return f"give a draft that fits this target with --draft ({misfits[0].code}: {misfits[0].message})"
    return f"compatfix gate TREE {target} --patch copy"


class Clock:
    """When a run began; stamps its report with that, the time it took and the tool's version."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._started = datetime.now(timezone.utc)

    def stamp(self, report: Report) -> Report:
        return replace(
            report,
            version=__version__,
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._began, 1),
        )
