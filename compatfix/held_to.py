"""What a run is held to, from its options: the scopes that must pass and the findings that count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compatfix.errors import UsageError
from compatfix.model import SCOPES

if TYPE_CHECKING:
    from compatfix.model import Level, Scope
    from compatfix.report.baseline import Baseline


def required_scopes(options: dict[str, Any]) -> tuple[Scope, ...]:
    """The scopes of --require; those that cannot pass in this run are refused before anything is measured."""
    required: tuple[Scope, ...] = options.pop("require")
    measurable = {"tiny": ("code",), "slice": ("code", "kernels"), "weights": SCOPES}[options["on"]]
    for scope in required:
        if scope not in measurable:
            how = "use --on weights" if scope != "kernels" else "use --on slice or --on weights"
            raise UsageError(f"scope {scope} cannot pass with --on {options['on']}: {how}")
    return required


def counted_findings(options: dict[str, Any]) -> tuple[Level, tuple[Baseline, str] | None]:
    """--fail-on and --baseline, which is read before anything is measured."""
    fail_on, path = options.pop("fail_on"), options.pop("baseline")
    if path is None:
        return fail_on, None
    from compatfix.report.baseline import load_baseline

    return fail_on, (load_baseline(path), str(path))
