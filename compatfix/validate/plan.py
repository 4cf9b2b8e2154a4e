"""The front's side: plans the tasks of a validation, runs them two by two in the worker, and has the results judged.

Torch-free. `validate(worker, request)` is the one entry; everything in its outcome is plain data.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from compatfix.model import Finding, ScopeVerdict
from compatfix.process import OnStep, Step, Worker, WorkerFailed
from compatfix.serial import to_plain
from compatfix.validate.benchmark import benchmark
from compatfix.validate.judge import CodeData, judge_code
from compatfix.validate.judge_kernels import judge_kernels
from compatfix.validate.judge_sampling import ALARM, LIMIT, status
from compatfix.validate.judge_speed import with_measured
from compatfix.validate.judge_weights import judge_weights
from compatfix.validate.ladder import climb, rung_of
from compatfix.validate.measured import summarise
from compatfix.validate.options import ValidateRequest
from compatfix.validate.tally import merge, stopped
from compatfix.validate.tasks import Task, sliced_task, tasks_of, timed_task

LADDER_TOKENS = 24
CODE_TASKS = ("losslessness", "situations", "faults", "bf16", "sampling", "long-run")


@dataclass(frozen=True)
class ValidateOutcome:
    """`scopes` in the order of model.SCOPES; `sections` as docs/report-schema.md describes them.

    `observed`: what the tasks really ran, each different one once (validate/observed.py).
    """

    scopes: tuple[ScopeVerdict, ...]
    findings: tuple[Finding, ...]
    sections: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    observed: tuple[Mapping[str, Any], ...] = ()


def validate(worker: Worker, request: ValidateRequest, on_step: OnStep = lambda step: None) -> ValidateOutcome:
    """Runs everything that the request asks for. Never raises for what the tree or the model does."""
    began = time.monotonic()
    # Before any two tasks wait for it at once.
    worker.wait_ready()
    runner = _Runner(worker, request, on_step)
    results = runner.run(tasks_of(request))
    if request.on == "slice" and not runner.hopeless:
        runner.alone(sliced_task(request))
    weights = runner.one("weights")
    kernels, of_kernels = judge_kernels(
        request.on, runner.one("slice"), runner.failures.get("slice"), (weights or {}).get("result")
    )
    scopes, more = judge_weights(request.on, request.draft is not None, weights, runner.failures.get("weights"))
    why_not = _why_not_timed(request, scopes[0])
    if weights and why_not is None:
        # Alone, since what runs beside it would be timed too.
        runner.alone(timed_task(request))
    data = _gather(results, runner)
    code, findings = judge_code(data)
    sections = _sections(request, data, results)
    sliced = runner.one("slice")
    if sliced and sliced["result"]:
        sections["slice"] = {**sliced["result"], "runtime": (sliced["subject"] or {}).get("runtime")}
    if weights and weights["result"]:
        sections["weights"] = {**weights["result"], "runtime": (weights["subject"] or {}).get("runtime")}
        timed = runner.one("measure")
        if timed and timed["result"]:
            sections["measured"] = summarise(timed["result"], request.seed)
        scopes, notes = with_measured(scopes, sections.get("measured"), _timing_failed(runner), why_not)
        more = (*more, *notes)
    seconds = time.monotonic() - began
    scopes = (code, kernels, *scopes)
    return ValidateOutcome(
        scopes, _distinct(*findings, *of_kernels, *more), sections, seconds, _observed(runner.results)
    )


def _distinct(*findings: Finding) -> tuple[Finding, ...]:
    """On the checkpoint, scopes kernels and weights are judged by one run."""
    seen: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        seen.setdefault((finding.code, finding.message), finding)
    return tuple(seen.values())


def _why_not_timed(request: ValidateRequest, weights: ScopeVerdict) -> str | None:
    if weights.status == "failed":
        return "not timed: the text on real weights is wrong"
    return None if request.repetitions else "not timed: --repetitions 0"


def _timing_failed(runner: _Runner) -> Finding | None:
    answer = runner.one("measure")
    if answer is not None and answer["error"] is not None:
        return Finding(answer["error"]["code"], "error", "measured", answer["error"]["message"])
    return runner.failures.get("measure")


class _Runner:
    """Hands tasks to the worker, `jobs` at a time, and keeps what came of them."""

    def __init__(self, worker: Worker, request: ValidateRequest, on_step: OnStep) -> None:
        self._worker, self._request, self._on_step = worker, request, on_step
        self._lock = threading.Lock()
        self._done: dict[int, tuple[str, Any]] = {}
        self.results: dict[str, list[Any]] = {}
        self.failures: dict[str, Finding] = {}
        self.skipped: list[str] = []
        self.hopeless = False

    def run(self, tasks: Sequence[Task]) -> dict[str, list[Any]]:
        waiting: queue.SimpleQueue[tuple[int, Task]] = queue.SimpleQueue()
        for numbered in enumerate(tasks):
            waiting.put(numbered)
        errors: list[BaseException] = []

        def work() -> None:
            while not errors:
                try:
                    self._one(*waiting.get_nowait())
                except queue.Empty:
                    return
                except BaseException as error:  # bad input and interrupts belong to the caller's thread
                    errors.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, self._request.jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        # In the order of the plan, whichever ended first: the same run twice reads the same.
        for _, (name, answer) in sorted(self._done.items()):
            self.results.setdefault(name, []).append(answer)
        return self.results

    def alone(self, task: Task) -> None:
        """Runs a task when no other does; a failure of its own spoils nothing else."""
        try:
            self.results[task.name] = [self._call(task.name, task.args)]
        except WorkerFailed as failed:
            self.failures[task.name] = failed.finding

    def one(self, name: str) -> Any:
        return next(iter(self.results.get(name, ())), None)

    def _one(self, number: int, task: Task) -> None:
        if task.needs_right and self.hopeless:
            self.skipped.append(task.name)
            return
        if task.name == "ladder":
            assert self._request.ladder_tree is not None
            rungs = climb(Path(self._request.ladder_tree), self._smoke)
            self._done[number] = task.name, to_plain(rungs)
            return
        try:
            answer = self._call(task.name, task.args)
        except WorkerFailed as failed:
            with self._lock:
                self.failures.setdefault(task.name, failed.finding)
                self.hopeless = True
            return
        with self._lock:
            self._done[number] = task.name, answer
            self.hopeless |= _is_wrong(answer)

    def _smoke(self, tree: Path, title: str) -> Any:
        try:
            return self._call("smoke", {"tree": str(tree), "tokens": LADDER_TOKENS}, f"ladder, {title}: ")
        except WorkerFailed as failed:
            return {"error": {"code": failed.finding.code, "message": failed.finding.message}, "result": None}

    def _call(self, task: str, args: Mapping[str, Any], prefix: str = "") -> Any:
        request = self._request
        common = {
            "task": task,
            "tree": request.tree,
            "target": request.target,
            "draft": request.draft,
            "seed": request.seed,
            "budgets": list(request.budgets),
            "loader": request.loader,
            "entries": list(request.entries),
            "arguments": list(request.arguments),
            "results": list(request.results),
            "dtype": request.dtype,
            "device": request.device,
            "attn": request.attn,
            "device_map": request.device_map,
        }

        def step(what: Step) -> None:
            with self._lock:
                self._on_step(Step(prefix + what.stage, what.done, what.total))

        limits: dict[str, Any] = {"time_limit": request.time_limit, "memory_limit": request.memory_limit}
        return self._worker.run("validate", {**common, **args}, on_step=step, **limits)


def _is_wrong(answer: Mapping[str, Any]) -> bool:
    if answer["error"] is not None:
        return True
    modes = answer["result"].get("modes", ())
    return answer["task"] == "losslessness" and bool(modes) and all(stopped(tally) for tally in modes)


def _gather(results: Mapping[str, list[Any]], runner: _Runner) -> CodeData:
    def parts(name: str, key: str) -> list[Any]:
        return [a["result"][key] for a in results.get(name, ()) if a["result"] is not None and key in a["result"]]

    answers = [a for name in CODE_TASKS for a in results.get(name, ())]
    errors: dict[str, Finding] = {}
    for answer in answers:
        if answer["error"] is not None:
            error = answer["error"]
            errors.setdefault(
                error["message"], Finding(error["code"], "error", "measured", error["message"], details=error["detail"])
            )
    for name, finding in runner.failures.items():
        if name not in ("weights", "measure", "slice"):
            errors.setdefault(finding.message, finding)
    plain = merge(parts("losslessness", "plain"))
    bf16 = next((a["result"] for a in results.get("bf16", ()) if a["result"]), None)
    exercised = parts("situations", "exercised")
    return CodeData(
        references=[r for part in parts("losslessness", "references") for r in part],
        plain=plain[0] if plain else None,
        modes=merge(t for name in ("losslessness", "situations") for part in parts(name, "modes") for t in part),
        exercised=exercised[0] if exercised else {},
        faults=[f for part in parts("faults", "faults") for f in part],
        bf16=bf16,
        subject=next((a["subject"] for a in answers if a["subject"]), {}),
        errors=tuple(errors.values()),
        skipped=tuple(dict.fromkeys(runner.skipped)),
        sampling=_sampling(results),
        long_run=next((a["result"] for a in results.get("long-run", ()) if a["result"]), None),
    )


def _observed(results: Mapping[str, list[Any]]) -> tuple[Mapping[str, Any], ...]:
    found: list[Mapping[str, Any]] = []
    for name, answers in results.items():
        for answer in answers if name != "ladder" else ():
            seen = answer.get("observed")
            if seen is not None and seen not in found:
                found.append(seen)
    return tuple(found)


def _sampling(results: Mapping[str, list[Any]]) -> dict[str, Any] | None:
    found = [answer["result"] for answer in results.get("sampling", ()) if answer["result"]]
    if not found:
        return None
    # The modes were dealt out one by one.
    dealt = zip_longest(*(result["modes"] for result in found))
    return {"sampler": found[0]["sampler"], "modes": [row for rows in dealt for row in rows if row is not None]}


def _sections(request: ValidateRequest, data: CodeData, results: Mapping[str, list[Any]]) -> dict[str, Any]:
    oracle = [tally for tally in data.modes if tally["profile"] == "oracle" and tally["mode"] != "loop"]
    sections: dict[str, Any] = {
        "validation": {
            **data.subject,
            "prompts": request.prompts,
            "tokens": request.tokens,
            "budgets": list(request.budgets),
            "skipped": list(data.skipped),
            "task_seconds": {n: [round(a["seconds"], 1) for a in v] for n, v in results.items() if n != "ladder"},
            "cpu_seconds": {n: [round(a["cpu_seconds"], 1) for a in v] for n, v in results.items() if n != "ladder"},
        },
        "losslessness": {
            "references": list(data.references),
            "plain": data.plain,
            "modes": list(data.modes),
            "exercised": {mode: dict(seen) for mode, seen in data.exercised.items()},
        },
        "faults": list(data.faults),
        "benchmark": benchmark(data.plain, oracle),
    }
    if data.bf16 is not None:
        sections["bf16"] = data.bf16
    if data.long_run is not None:
        sections["long_run"] = data.long_run
    if data.sampling is not None:
        rows = [{**row, "status": status(row)} for row in data.sampling["modes"]]
        sections["sampling"] = {**data.sampling, "alarm": ALARM, "limit": LIMIT, "modes": rows}
    if results.get("ladder"):
        # The top of the ladder is what the main experiment measured.
        top = [rung_of("the tree that was judged", (), oracle)] if any(tally["run"] for tally in oracle) else []
        rungs = results["ladder"][0]
        sections["ladder"] = [*rungs, *to_plain(top)] if rungs else []
    return sections
