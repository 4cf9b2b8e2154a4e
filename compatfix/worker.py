"""The other process: everything that touches torch runs here.

Started by the front as `python -m compatfix.worker` in the environment under test (a POSIX system: it forks). It speaks
JSON lines: requests on standard input, events on the descriptor that was standard output. torch and transformers are
imported once, then every job runs in a fork of that state: each job starts from clean modules (a tree's flat names
cannot collide with those of another variant) and costs no second import.

Requests: {"id", "job", "args", "memory_limit"} or {"stop": id}.
Events: {"id", "event": "ready" | "progress" | "result" | "error" | "exit", …}.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from compatfix.attest import used

# Short names of the tool's own jobs; any other job is given as "module:function".
JOBS = {
    "inspect": "compatfix.introspect.job:run",
    "validate": "compatfix.validate.job:run",
    "diagnose": "compatfix.diagnose.job:run",
}


class Progress(Protocol):
    def __call__(self, stage: str, done: int | None = None, total: int | None = None) -> None: ...


class JobError(Exception):
    """Bad input that a job discovered; shown to the user as one line."""


class _Channel:
    """Writes whole lines: several forks share one descriptor, so a file lock keeps their lines apart."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process

    def send(self, message: dict[str, Any]) -> None:
        data = (json.dumps(message) + "\n").encode()
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)


def main() -> None:
    # Models and kernels print; their words must not mix with the protocol.
    channel = _Channel(os.dup(1))
    os.dup2(2, 1)
    used.watch()
    _import_heavy(channel)
    children: dict[int, int] = {}
    buffer = b""
    open_input = True
    while open_input or children:
        readable, _, _ = select.select([0] if open_input else [], [], [], 0.05)
        if readable:
            chunk = os.read(0, 65536)
            open_input = bool(chunk)
            if not open_input:
                # The front is gone; nobody waits for what still runs.
                for child in children:
                    os.kill(child, signal.SIGKILL)
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                _serve(json.loads(line), channel, children)
        _reap(channel, children)


def _import_heavy(channel: _Channel) -> None:
    try:
        import torch
        import transformers
        import transformers.models.qwen3.modeling_qwen3

        # transformers imports lazily; what every job needs is imported before the forks, once.
        _ = transformers.AutoModelForCausalLM, transformers.DynamicCache, transformers.PreTrainedModel
    except Exception as error:
        channel.send({"id": None, "event": "error", "kind": "environment", "message": _first_line(error)})
        sys.exit(3)
    # One thread: the jobs fork, and two of them share a small machine.
    torch.set_num_threads(1)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    place = used.place()
    channel.send({"id": None, "event": "ready", "versions": versions, "python": sys.version.split()[0], "place": place})


def _serve(request: dict[str, Any], channel: _Channel, children: dict[int, int]) -> None:
    if "stop" in request:
        for pid, job_id in children.items():
            if job_id == request["stop"]:
                os.kill(pid, signal.SIGKILL)
        return
    pid = os.fork()
    if pid:
        children[pid] = request["id"]
        return
    # Leaving through os._exit keeps the child from running the parent's exit handlers.
    code = 1
    try:
        os.close(0)
        _run(request, channel)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(request: dict[str, Any], channel: _Channel) -> None:
    job_id = request["id"]

    def progress(stage: str, done: int | None = None, total: int | None = None) -> None:
        channel.send({"id": job_id, "event": "progress", "stage": stage, "done": done, "total": total})

    progress(f"starting {request['job']}")
    try:
        _limit_memory(request.get("memory_limit"))
        module, _, name = JOBS.get(request["job"], request["job"]).partition(":")
        job: Callable[[dict[str, Any], Progress], Any] = getattr(importlib.import_module(module), name)
        value = job(request["args"], progress)
        channel.send({"id": job_id, "event": "result", "value": value, "files": used.files()})
    except JobError as error:
        channel.send({"id": job_id, "event": "error", "kind": "input", "message": str(error)})
    except MemoryError as error:
        channel.send({"id": job_id, "event": "error", "kind": "memory", "message": _first_line(error)})
    except BaseException as error:
        kind = "memory" if _is_allocation_failure(error) else "exception"
        message = {"id": job_id, "event": "error", "kind": kind, "message": _first_line(error)}
        channel.send({**message, "traceback": traceback.format_exc()})


def _limit_memory(limit: int | None) -> None:
    if limit is None:
        return
    import resource

    # Data, not address space: torch maps far more than it uses.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _is_allocation_failure(error: BaseException) -> bool:
    text = str(error)
    return "can't allocate memory" in text or "out of memory" in text.lower()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _reap(channel: _Channel, children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        job_id = children.pop(pid)
        channel.send({"id": job_id, "event": "exit", "code": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    # Jobs import this module by its name; its exceptions must be the same classes here.
    importlib.import_module("compatfix.worker").main()
