"""The front's side of a diagnosis: patch a copy where asked, run the job, make the report. Without torch."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from compatfix.codes import CODES
from compatfix.errors import UsageError
from compatfix.model import Finding, Level, Report, Statement
from compatfix.process import OnStep, WorkerFailed, worker

Chat = Literal["raw", "template", "thinking", "no-thinking"]


@dataclass(frozen=True)
class DiagnoseOptions:
    """How much to measure: prompts and tokens of each, the tree's budgets, and the form of the prompts (`chat`).

    `texts` are the prompts, or else the tool's own. `reference` is the directory of the target's unrotated checkpoint.
    `only` names the suspects to try; () for all. `entries`, `arguments` and `results` name
    what is not found by signature, as for a gate.
    """

    prompts: int = 12
    tokens: int = 32
    budgets: tuple[int, ...] = (8,)
    seed: int = 0
    chat: Chat = "raw"
    texts: tuple[str, ...] = ()
    reference: str | None = None
    only: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    python: str | None = None
    time_limit: float | None = None
    memory_limit: int | None = None


def diagnosed(
    root: Path, target: str, draft: str, options: DiagnoseOptions, *, patched: bool, on_step: OnStep
) -> Report:
    """Raises UsageError for bad input, and where the pair cannot be run at all."""
    from compatfix.gating import check_input

    check_input(target, draft, "weights")
    if options.reference is not None and not Path(options.reference).is_dir():
        raise UsageError(f"no directory {options.reference}: --reference is the target's unrotated checkpoint")
    args = {
        "target": target,
        "draft": draft,
        "seed": options.seed,
        "prompts": options.prompts,
        "tokens": options.tokens,
        "budgets": list(options.budgets),
        "chat": options.chat,
        "texts": list(options.texts),
        "reference": options.reference,
        "only": list(options.only),
        "entries": options.entries,
        "arguments": options.arguments,
        "results": options.results,
    }
    limits: dict[str, Any] = {"time_limit": options.time_limit, "memory_limit": options.memory_limit}
    subject = {"target": target, "draft": draft, "tree judged": "a patched copy" if patched else "as it is on disk"}
    with _judged(root, patched) as tree, worker(options.python) as process:
        try:
            versions = process.wait_ready()
            found = process.run("diagnose", {**args, "tree": str(tree)}, on_step=on_step, **limits)
        except WorkerFailed as failure:
            return Report("diagnose", subject, findings=(failure.finding,))
    return report_of({**subject, **versions}, found)


def report_of(subject: Mapping[str, Any], found: Mapping[str, Any]) -> Report:
    """Pure: the section "diagnosis" and what it says. Causes are findings; what only contributes is a note."""
    return Report(
        "diagnose",
        subject,
        statements=tuple(_statements(found)),
        findings=tuple(_findings(found)),
        sections={"diagnosis": dict(found)},
    )


def causes(report: Report) -> tuple[str, ...]:
    """The names of the causes, the first first."""
    suspects = report.sections.get("diagnosis", {}).get("suspects", ())
    return tuple(suspect["name"] for suspect in suspects if suspect["status"] == "cause")


def conclusion(report: Report) -> str:
    """One line: what the diagnosis came to."""
    section = report.sections.get("diagnosis")
    if section is None:
        return "diagnose: nothing could be measured"
    named = causes(report)
    if named:
        return f"diagnose: {', then '.join(named)}"
    if any(section["wrong_texts"].values()):
        return "diagnose: the text is not that of plain decoding, and no suspect explains it; run compatfix gate"
    little, unmeasured = (
        [suspect["name"] for suspect in section["suspects"] if suspect["status"] == status]
        for status in ("contributes", "unmeasured")
    )
    unknown = [*unmeasured, *section["left_out"]]
    aside = f"; not measured: {', '.join(unknown)}" if unknown else ""
    if little:
        return f"diagnose: no cause; {', '.join(little)} contributes a little{aside}"
    if unknown:
        return f"diagnose: nothing that was measured raises acceptance{aside}"
    return "diagnose: nothing raises acceptance; this is what the draft achieves here"


def exit_code(report: Report) -> int:
    section = report.sections.get("diagnosis")
    if section is None:
        return 2
    return 1 if causes(report) or any(section["wrong_texts"].values()) else 0


def _statements(found: Mapping[str, Any]) -> Iterator[Statement]:
    topic, prompts = "accepted length", f"{found['prompts']} prompts of at most {found['tokens']} tokens"
    yield Statement(
        topic, "baseline", f"as it runs: {_told(found['baseline'])} ({prompts})", "measured", found["baseline"]
    )
    if found["levels"]:
        names = ", ".join(level["repair"] for level in found["levels"])
        yield Statement(
            topic, "repaired", f"with {names} repaired: {_told(found['repaired'])}", "measured", found["repaired"]
        )
    yield Statement(topic, "floor", f"of an untrained draft: {_told(found['floor'])}", "measured", found["floor"])
    always = f"if the draft were always right: {found['block']}, the block size"
    yield Statement(topic, "always right", always, "read", found["block"])
    wrong = {mode: count for mode, count in found["wrong_texts"].items() if count}
    if wrong:
        told = ", ".join(f"{count} of {found['prompts']} with {mode}" for mode, count in wrong.items())
        yield Statement(topic, "wrong texts", f"texts that are not those of plain decoding: {told}", "measured", wrong)


def _told(lengths: Mapping[str, float]) -> str:
    return ", ".join(f"{length:.2f} with {mode}" for mode, length in lengths.items())


def _findings(found: Mapping[str, Any]) -> Iterator[Finding]:
    for suspect in found["suspects"]:
        if suspect["status"] in ("cause", "contributes"):
            level: Level = CODES[suspect["code"]].level if suspect["status"] == "cause" else "note"
            message = f"{suspect['name']}: {suspect['reason']}"
            details = {name: suspect[name] for name in ("status", "toggle", "mode", "before", "after", "level")}
            yield Finding(suspect["code"], level, suspect["evidence"], message, fix=suspect["step"], details=details)


@contextlib.contextmanager
def _judged(root: Path, patched: bool) -> Iterator[Path]:
    if not patched:
        yield root
        return
    from compatfix.rewrites import patch_copy

    with tempfile.TemporaryDirectory(prefix="compatfix-") as scratch:
        patch_copy(root, Path(scratch) / "patched")
        yield Path(scratch) / "patched"
