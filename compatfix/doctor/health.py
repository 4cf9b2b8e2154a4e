"""Does a package import? Asked by importing it, each one in a fork: a crash or a hang is an answer too.

Runs as a job of the worker, and as a program of its own (`python -m compatfix.doctor.health LIMIT`) where torch or
transformers cannot be imported and no worker starts. Nothing but the standard library is imported here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import time
from typing import Any

from compatfix.packages import PACKAGES, PackageSpec

WORKS, BROKEN, ABSENT = "works", "broken", "absent"
POLL_SECONDS = 0.01


def health_of(spec: PackageSpec, seconds: float) -> dict[str, Any]:
    """One package as JSON: `name`, `version` (or None), `state` ("works", "broken", "absent"), and `error`."""
    version = next(filter(None, map(_installed, (spec.name, *spec.also))), None)
    answer = {"name": spec.name, "version": version, "state": WORKS, "error": None}
    if not _is_there(spec.module):
        if version is None:
            return {**answer, "state": ABSENT}
        return {**answer, "state": BROKEN, "error": f"installed by its metadata, and there is no module {spec.module}"}
    found = _imported((spec.module, *spec.parts), seconds)
    if "error" in found:
        return {**answer, "state": BROKEN, "error": found["error"]}
    return {**answer, "version": version or found["version"]}


def all_packages(seconds: float, progress: Any = lambda *_: None) -> list[dict[str, Any]]:
    found = []
    for done, spec in enumerate(PACKAGES):
        progress(f"importing {spec.module}", done, len(PACKAGES))
        found.append(health_of(spec, seconds))
    return found


def run(args: dict[str, Any], progress: Any) -> list[dict[str, Any]]:
    """The worker's job. Args: `seconds`, the limit for one import."""
    return all_packages(float(args["seconds"]), progress)


def main() -> None:
    """As a program: the same on standard output, as JSON."""
    found = {"python": sys.version.split()[0], "packages": all_packages(float(sys.argv[1]))}
    print(json.dumps(found))


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_there(module: str) -> bool:
    """Whether an import would find something; a module without a spec counts, since it is loaded."""
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _imported(modules: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Imports modules in a fork: {"version"} of the first, or {"error"} in a line."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _import_and_leave(modules, write_end)
    os.close(write_end)
    try:
        status = _awaited(pid, seconds)
        if status is None:
            return {"error": f"the import did not end within {seconds:g} s"}
        os.set_blocking(read_end, False)
        try:
            told = os.read(read_end, 65536)
        except BlockingIOError:  # a grandchild holds the pipe open
            told = b""
    finally:
        os.close(read_end)
    try:
        answer: dict[str, Any] = json.loads(told)
    except ValueError:
        return {"error": _death(status)}
    return answer


def _import_and_leave(modules: tuple[str, ...], write_end: int) -> None:
    """The fork's part; never returns. What the package prints would mix with the protocol of whoever asks."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            found = [importlib.import_module(name) for name in modules]
            answer = _what_was_found(modules[0], found[0])
        except BaseException as error:
            answer = {"error": _line(error)}
        os.write(write_end, json.dumps(answer).encode()[:60000])
    finally:
        os._exit(0)


def _what_was_found(name: str, module: Any) -> dict[str, Any]:
    if getattr(module, "__file__", None) is None:
        place = next(iter(getattr(module, "__path__", ())), "somewhere")
        return {"error": f"{place} is a directory of that name and no package ({name} has no __init__.py)"}
    version = getattr(module, "__version__", None)
    return {"version": version if isinstance(version, str) else None}


def _awaited(pid: int, seconds: float) -> int | None:
    """The exit code of a child; None, and the child is ended, where it takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(POLL_SECONDS)


def _death(code: int) -> str:
    if code >= 0:
        return f"the import ended the process with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the import crashed the process ({name})"


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
