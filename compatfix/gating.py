"""From a tree and a target to a report with a verdict: what `validate` and `gate` share, and what the gate adds."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from compatfix.answered import unanswered
from compatfix.attest.fingerprint import Used
from compatfix.attest.state import State, tree_state
from compatfix.codes import CODES
from compatfix.model import SCOPES, Finding, PatchPlan, Report, ScopeVerdict, Verdict, unmeasured
from compatfix.process import OnStep, Worker, WorkerFailed, worker
from compatfix.validate.options import ValidateRequest, ValidationOptions

Patching = Literal["copy", "in-place"]

# Families of inspection's findings that a validation does not answer by experiment: environment, pairing, memory,
# the files of the checkpoints.
STANDING = ("CF0", "CF4", "CF6", "CF8")


@dataclass(frozen=True)
class RuleChoice:
    """Which rules apply, and whether files with uncommitted changes may be rewritten."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    allow_dirty: bool = False


def gated(
    root: Path,
    target: str,
    draft: str | None,
    options: ValidationOptions,
    patching: Patching | None,
    rules: RuleChoice,
    ladder: bool,
    on_step: OnStep,
    used: Used | None = None,
) -> Report:
    """Judges the tree on disk, or a patched copy of it, or the tree patched in place."""
    from compatfix.rewrites import apply, copy_tree, plan

    check_input(target, draft, options.on, options.values)
    planned = plan(root, select=rules.select, ignore=rules.ignore)
    planned = replace(planned, unfixed=tuple(_with_source(root, _weighed(root, f)) for f in planned.unfixed))
    broken = [finding for finding in planned.unfixed if finding.code == "CF908" and finding.level == "error"]
    if broken:
        return _with_plan(_unreadable(target, draft, broken), planned, "not judged")
    if patching is None:
        if planned.empty:
            return _with_plan(
                judge("gate", root, target, draft, options, on_step, used=used), planned, "as it is on disk"
            )
        return _with_plan(_pending(root, target, draft, planned), planned, "as it is on disk")
    with _scratch() as scratch:
        published = copy_tree(root, scratch / "published") if ladder and not planned.empty else None
        if patching == "copy":
            judged = _patched_copy(root, scratch / "patched", rules)
        else:
            apply(planned, allow_dirty=rules.allow_dirty)
            judged = root
        report = judge("gate", judged, target, draft, options, on_step, ladder_tree=published, used=used)
    how = "a patched copy" if patching == "copy" else "patched in place"
    return _with_plan(report, planned, how)


def judge(
    kind: str,
    root: Path,
    target: str,
    draft: str | None,
    options: ValidationOptions,
    on_step: OnStep,
    *,
    ladder_tree: Path | None = None,
    used: Used | None = None,
) -> Report:
    """Validates a tree, with an inspection of target and draft at its side, in one worker.

    `used` is told what was really read. A tree whose code changes meanwhile passes nothing.
    """
    from compatfix.validate.plan import validate
    from compatfix.validate.run_statements import how_it_drifted, what_ran, what_was_sampled
    from compatfix.validate.timing_statements import what_was_timed

    check_input(target, draft, options.on, options.values)
    request = ValidateRequest(
        **vars(options),
        tree=str(root),
        target=target,
        draft=draft,
        ladder_tree=None if ladder_tree is None else str(ladder_tree),
    )
    subject = {"target": target} | ({"draft": draft} if draft is not None else {}) | {"judged on": options.on}
    before = tree_state(root)
    try:
        with worker(options.python) as process:
            process.wait_ready()
            inspection = _Inspection(process, target, draft, options)
            outcome = validate(process, request, on_step)
            versions, standing = process.versions, unanswered(root, inspection.findings())
            layout = inspection.layout()
            if used is not None:
                used.files |= process.files
                used.place, used.tree, used.observed = process.place, before, outcome.observed
    except WorkerFailed as failure:
        return Report(kind, subject, findings=(failure.finding,), verdict=_all_unmeasured(failure.finding))
    scopes = tuple(_with_pairing(scope, standing) for scope in outcome.scopes)
    scopes = _of_one_tree(scopes, before, tree_state(root))
    edited = _edited_runtime(root) if kind == "validate" else ()
    findings = (*outcome.findings, *standing, *edited)
    return Report(
        kind,
        {**subject, **versions},
        statements=(
            *what_ran(versions, outcome.sections.get("validation", {})),
            *what_was_sampled(outcome.sections),
            *what_was_timed(outcome.sections),
            *how_it_drifted(outcome.sections),
        ),
        findings=findings,
        verdict=Verdict(scopes),
        sections={**outcome.sections, **({"cache": layout} if layout is not None else {})},
    )


def check_input(target: str, draft: str | None, on: str, values: str = "random") -> None:
    """Bad directories and configs, and checkpoints that cannot be loaded, are told before torch is imported."""
    from compatfix.introspect.configfile import read_config, read_target_config
    from compatfix.validate.checkpoint import check_checkpoint, check_slice

    read_target_config(target)
    if draft is not None:
        read_config(draft)
    if on == "weights":
        check_checkpoint(target, draft)
    if on == "slice":
        check_slice(target, values)


class _Inspection:
    """The job "inspect", at the side of the validation."""

    def __init__(self, process: Worker, target: str, draft: str | None, options: ValidationOptions) -> None:
        self._process, self._options = process, options
        self._args = {"target": target, "draft": draft, "context": 32768, "seed": options.seed}
        self._found: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def findings(self) -> tuple[Finding, ...]:
        """What stands in the way besides the code. Raises what the job raised for bad input."""
        from compatfix.checks import run_checks
        from compatfix.profiles import Inspection
        from compatfix.serial import from_plain

        self._thread.join()
        if isinstance(self._error, WorkerFailed):
            return (replace(self._error.finding, message=f"inspection: {self._error.finding.message}"),)
        if self._error is not None:
            raise self._error
        checked = run_checks(from_plain(Inspection, self._found))
        return tuple(finding for finding in checked if finding.code.startswith(STANDING))

    def layout(self) -> dict[str, Any] | None:
        """What each layer of the real config's cache keeps, and which ones the draft reads; None where unknown."""
        cache = self._found["target"]["cache"] if self._found else None
        if not cache or not cache["layers"]:
            return None
        draft = self._found["draft"]
        return {
            "class_name": cache["class_name"],
            "layers": cache["layers"],
            "states": self._found["target"]["states"],
            "read_by_draft": draft["layer_ids"] if draft else [],
        }

    def _run(self) -> None:
        limits: dict[str, Any] = {"time_limit": self._options.time_limit, "memory_limit": self._options.memory_limit}
        try:
            self._found = self._process.run("inspect", self._args, **limits)
        except BaseException as error:
            self._error = error


def _pending(root: Path, target: str, draft: str | None, planned: PatchPlan) -> Report:
    count, files = len(planned.fixes), len({fix.location.path for fix in planned.fixes})
    what = f"{count} fixes are pending in {files} files" if count else "the copied runtime is out of date"
    command = shlex.join(["compatfix", "patch", str(root)])
    finding = Finding("CF905", CODES["CF905"].level, "read", f"{what}; what would run is not patched", fix=command)
    verdict = ScopeVerdict("code", "failed", what, f"{command}, or gate with --patch copy")
    others = tuple(unmeasured(scope, "the tree is not patched", command) for scope in SCOPES[1:])
    subject = {"target": target} | ({"draft": draft} if draft is not None else {})
    return Report("gate", subject, findings=(finding,), verdict=Verdict((verdict, *others)))


def _weighed(root: Path, finding: Finding) -> Finding:
    """A file that cannot be parsed stands in the way only if another file of the tree imports it."""
    if finding.code != "CF908" or finding.location is None:
        return finding
    path = Path(finding.location.path)
    stem = path.parent.name if path.name == "__init__.py" else path.stem
    imported = re.compile(rf"^\s*(from|import)\b.*\b{re.escape(stem)}\b", re.MULTILINE)
    for other in root.rglob("*.py"):
        with contextlib.suppress(OSError):
            if other != root / path and imported.search(other.read_text(encoding="utf-8", errors="replace")):
                return finding
    return replace(finding, level="warning", message=f"{finding.message} (no other file imports it)")


def _with_source(root: Path, finding: Finding) -> Finding:
    """Keeps the line as it is now: it names the finding wherever the line moves to (compatfix.report.fingerprints)."""
    if finding.location is None or finding.location.line is None:
        return finding
    try:
        lines = (root / finding.location.path).read_text(encoding="utf-8", errors="replace").splitlines()
        source = lines[finding.location.line - 1].strip()
    except (OSError, IndexError):
        return finding
    return replace(finding, details={**finding.details, "source": source})


def _unreadable(target: str, draft: str | None, broken: list[Finding]) -> Report:
    """A file that cannot be parsed cannot be judged, and nothing runs before it is mended."""
    what = f"{broken[0].location}: {broken[0].message}"
    verdict = ScopeVerdict("code", "failed", what, "mend the file")
    others = tuple(unmeasured(scope, "the tree was not run", "mend the file") for scope in SCOPES[1:])
    subject = {"target": target} | ({"draft": draft} if draft is not None else {})
    return Report("gate", subject, verdict=Verdict((verdict, *others)))


def _patched_copy(root: Path, destination: Path, rules: RuleChoice) -> Path:
    from compatfix.rewrites import patch_copy

    patch_copy(root, destination, select=rules.select, ignore=rules.ignore)
    return destination


def _with_plan(report: Report, planned: PatchPlan, how: str) -> Report:
    """Adds what the patcher did, left and was told to leave; an error that it left keeps scope code from passing."""
    from compatfix.serial import to_plain

    assert report.verdict is not None
    code = report.verdict.of("code")
    errors = [finding for finding in planned.unfixed if finding.level == "error"]
    if errors and code.status == "passed":
        code = replace(code, status="failed", reason=f"{len(errors)} places that break are left: {errors[0].message}")
    for what, counts in (("rules left out", planned.ignored), ("exempt by a comment", planned.suppressed)):
        if counts:
            listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
            code = replace(code, reason=f"{code.reason} [{what}: {listed}]")
    scopes = (code, *(scope for scope in report.verdict.scopes if scope.scope != "code"))
    fixes = [{"code": f.code, "place": str(f.location), "before": f.before, "after": f.after} for f in planned.fixes]
    patch = {"fixes": fixes, "copied": len(planned.copied), "ignored": to_plain(planned.ignored)}
    patch["suppressed"] = to_plain(planned.suppressed)
    return replace(
        report,
        subject={**report.subject, "tree judged": how},
        findings=(*report.findings, *planned.unfixed),
        verdict=Verdict(scopes),
        sections={**report.sections, "patch": patch},
    )


def _edited_runtime(root: Path) -> tuple[Finding, ...]:
    """The gate learns this from its plan; a validation makes none."""
    from compatfix.rewrites.runtime_copy import own_runtime, plan_copy

    refused = plan_copy(root, own_runtime()).refused
    return () if refused is None else (refused,)


def _with_pairing(scope: ScopeVerdict, standing: tuple[Finding, ...]) -> ScopeVerdict:
    """A draft that does not fit its target fails scope draft, whatever else is unmeasured."""
    errors = [finding for finding in standing if finding.code.startswith("CF4") and finding.level == "error"]
    if scope.scope != "draft" or not errors:
        return scope
    return replace(scope, status="failed", reason=errors[0].message, next_step=errors[0].fix)


def _of_one_tree(scopes: tuple[ScopeVerdict, ...], before: State, after: State) -> tuple[ScopeVerdict, ...]:
    """What passed holds for the code that was there all the time, and for no other."""
    changed = [n for n in sorted(before.keys() | after.keys()) if n.endswith(".py") and before.get(n) != after.get(n)]
    if not changed:
        return scopes
    reason = f"{changed[0]} changed while the tree was judged"
    return tuple(
        replace(scope, status="undecided", reason=reason, next_step="run again") if scope.status == "passed" else scope
        for scope in scopes
    )


def _all_unmeasured(finding: Finding) -> Verdict:
    return Verdict(tuple(ScopeVerdict(scope, "unmeasured", finding.message, "run again with -v") for scope in SCOPES))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="compatfix-") as directory:
        yield Path(directory)
