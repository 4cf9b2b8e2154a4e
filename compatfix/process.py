"""The front's side of the worker: start it, give it jobs, turn its death into a finding.

A `Worker` imports torch once and runs each job in a fork. Jobs may run side by side; a crash, a hang or an
out-of-memory in one of them raises `WorkerFailed` with a finding that names the last thing the job was doing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from compatfix.errors import UsageError
from compatfix.model import Finding

START_SECONDS = 180.0


@dataclass(frozen=True)
class Step:
    """What a job said last: `stage` in words, `done` of `total` where it counts."""

    stage: str
    done: int | None = None
    total: int | None = None

    def __str__(self) -> str:
        return self.stage if self.total is None else f"{self.stage} ({self.done}/{self.total})"


OnStep = Callable[[Step], None]


class WorkerFailed(Exception):
    """A job ended without a result. `finding` says how; `traceback` is the worker's, for `-v`."""

    def __init__(self, finding: Finding, traceback: str | None = None) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.traceback = traceback


class Worker:
    """One worker process; use as a context manager.

    `python` is the interpreter of the environment under test. It needs torch and transformers there; compatfix itself
    travels on the path.
    """

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._ids = itertools.count(1)
        self._queues: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._ready: queue.Queue[dict[str, Any]] = queue.Queue()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._write_lock = threading.Lock()
        self._ready_lock = threading.Lock()
        self._ended_lock = threading.Lock()
        self._ended: dict[str, Any] | None = None
        self.versions: Mapping[str, str] = {}
        # What the jobs read so far, and the interpreter that read it.
        self.files: set[str] = set()
        self.place: dict[str, Any] = {}

    def __enter__(self) -> Worker:
        package_parent = str(Path(__file__).resolve().parent.parent)
        search = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": search, "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1")}
        environment.setdefault("TRANSFORMERS_VERBOSITY", "error")
        # Judged code has no earlier verdict to answer to.
        environment["COMPATFIX_ATTEST"] = "off"
        try:
            # The working directory must not shadow modules: a tree's `model` or `dflash` would be importable from it.
            command = [self._python, "-P"] if _has_safe_path(self._python) else [self._python]
            self._process = subprocess.Popen(
                [*command, "-m", "compatfix.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment,
                # Its own group: one signal ends the worker and its forks, and Ctrl-C reaches the front alone.
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"cannot start {self._python}: {error.strerror or error}") from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._end_forks, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_group()
        self._process.wait()
        self._reader.join()
        self._stderr.close()

    def wait_ready(self) -> Mapping[str, str]:
        """Waits until torch and transformers are imported; returns the versions of the environment under test."""
        with self._ready_lock:
            if self.versions:
                return self.versions
            try:
                message = self._ready.get(timeout=START_SECONDS)
            except queue.Empty:
                late = f"importing torch took more than {START_SECONDS:.0f} s"
                raise WorkerFailed(_died("CF011", late, None)) from None
            if message["event"] != "ready":
                raise UsageError(f"{self._python} cannot import torch and transformers: {message['message']}")
            self.place = message["place"]
            self.versions = {"python": message["python"], **message["versions"]}
            return self.versions

    def run(
        self,
        job: str,
        args: Mapping[str, Any],
        *,
        on_step: OnStep = lambda step: None,
        time_limit: float | None = None,
        memory_limit: int | None = None,
    ) -> Any:
        """Runs one job and returns its JSON result. Raises WorkerFailed, or UsageError for bad input found there."""
        self.wait_ready()
        job_id = next(self._ids)
        inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        with self._ended_lock:
            self._queues[job_id] = inbox
            if self._ended is not None:
                inbox.put(self._ended)
        self._send({"id": job_id, "job": job, "args": dict(args), "memory_limit": memory_limit})
        deadline = None if time_limit is None else time.monotonic() + time_limit
        last: Step | None = None
        result: dict[str, Any] | None = None
        while True:
            try:
                message = inbox.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._send({"stop": job_id})
                raise WorkerFailed(_died("CF011", f"no answer within {time_limit:.0f} s", last)) from None
            match message["event"]:
                case "progress":
                    last = Step(message["stage"], message["done"], message["total"])
                    on_step(last)
                case "result" | "error":
                    result = message
                case "exit":
                    return self._outcome(result, message["code"], last)

    def _outcome(self, result: dict[str, Any] | None, code: int, last: Step | None) -> Any:
        if result is None:
            how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            # The kernel's out-of-memory killer sends 9, and nobody else does unless the time limit ran out.
            kind = "CF012" if code == -9 else "CF010"
            raise WorkerFailed(_died(kind, f"the worker was {how}", last), self.error_output())
        if result["event"] == "result":
            self.files.update(result["files"])
            return result["value"]
        if result["kind"] == "input":
            raise UsageError(result["message"])
        kind = "CF012" if result["kind"] == "memory" else "CF013"
        raise WorkerFailed(_died(kind, result["message"], last), result.get("traceback"))

    def error_output(self, lines: int = 20) -> str:
        """The end of what the worker wrote to standard error."""
        self._stderr.seek(0)
        return "\n".join(self._stderr.read().decode(errors="replace").splitlines()[-lines:])

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._write_lock:
            try:
                self._process.stdin.write((json.dumps(message) + "\n").encode())
                self._process.stdin.flush()
            except BrokenPipeError:
                # The reader thread sees the end of the process and tells every job that waits.
                return

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a fork was killed while it wrote
            (self._ready if message["id"] is None else self._queues[message["id"]]).put(message)
        code = self._process.wait()
        self._ready.put({"event": "error", "message": self._why_it_ended(code)})
        with self._ended_lock:
            self._ended = {"event": "exit", "code": code}
            for inbox in self._queues.values():
                inbox.put(self._ended)

    def _end_forks(self) -> None:
        """Forks outlive a worker that was killed, and hold its pipes open: they are ended with it."""
        self._process.wait()
        self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _why_it_ended(self, code: int) -> str:
        tail = self.error_output(1)
        return tail or f"the process ended with exit code {code}"


def _died(code: str, what: str, last: Step | None) -> Finding:
    doing = f"; last step: {last}" if last is not None else ""
    return Finding(code, "error", "measured", f"{what}{doing}")


def _has_safe_path(python: str) -> bool:
    """`-P` exists since Python 3.11; asking the interpreter costs a start, so only foreign ones are asked."""
    if python == sys.executable:
        return sys.version_info >= (3, 11)
    probe = subprocess.run([python, "-P", "-c", ""], capture_output=True, check=False)
    return probe.returncode == 0


@contextmanager
def worker(python: str | None = None) -> Iterator[Worker]:
    with Worker(python or sys.executable) as process:
        yield process
