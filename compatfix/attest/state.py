"""Reads the state of files, directories and the machine, as plain data that can be compared. Torch is never needed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

State = dict[str, Any]

# Above it a file is told by size, times and inode: hashing must stay below a second.
HASHED_BYTES = 1 << 20
# The verdict in a patched tree: written by the tool, and no part of what is judged.
TRAVELLING = "compatfix_runtime/attest.json"
_LEFT_OUT = {".git", ".hg", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
# Of a virtual environment; what else lies in its directory is code like any other.
_OF_ENVIRONMENT = ("bin", "include", "share", "Scripts", "Include", "site-packages")
# What the tool writes below its report directory: files of a run, pointers to the last ones.
_WRITTEN = re.compile(
    r"(\d{8}T\d+-|report-)[\w.-]+/((report\.(json|md|html))|junit\.xml|codequality\.json|(verdict|attest)\.json)"
    r"|latest\.txt|\.latest-\d+|\.green/[^/]+"
)
_SUFFIXES = (".py", ".so", ".pyc", ".pth", ".zip", ".egg", ".dist-info", ".egg-info", ".egg-link", ".pyd")
# Variables of the shell, the terminal, the desktop, the build and its host: they say where a command was started, and
# no result depends on them. Every other variable counts.
_WHERE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM(_.*|INFO)?|COLORTERM|WINDOWID|DISPLAY|PS[0-9]|PROMPT.*|HIST.*|LS_COLORS"
    r"|LESS.*|PAGER|EDITOR|VISUAL|MAIL|COMP_.*|(SSH|GPG|DBUS|TMUX|VSCODE|WAYLAND|GNOME|KDE|DESKTOP|SESSION|SYSTEMD)(_.*)?"
    r"|STY|XDG_(SESSION|CURRENT|RUNTIME|SEAT|VTNR|MENU).*|INVOCATION_ID|JOURNAL_STREAM|(MAKE|MFLAGS).*|PRE_COMMIT.*"
    r"|(GIT|GITHUB|GITLAB|CI|RUNNER|JENKINS|HUDSON|BUILD|JOB)_.*"
    r"|SLURM_(JOB|STEP|SUBMIT|TASK_PID|LAUNCH|SRUN|TOPOLOGY|NODE|GTIDS).*|PYTEST_CURRENT_TEST"
)
# Of the shell's own, not even where the tree's code names them: every start sets them anew.
_OF_SHELL = {"_", "PWD", "OLDPWD", "SHLVL"}
# They say where the tool keeps things and what it tells.
_HARMLESS = {"COMPATFIX_STATE_DIR", "COMPATFIX_ATTEST", "COMPATFIX_VERDICT", "PYTHONUNBUFFERED"}
_QUOTED = re.compile(rb"""["']([A-Za-z_][A-Za-z0-9_]*)["']""")


def tree_state(root: Path, reports: Path | None = None) -> State:
    """Every file below `root` by relative path: its hash, or what `stat` says of a large one.

    Version control, compiled files, caches of tools, the packages of virtual environments, and what the tool itself
    writes into the directory `reports` are left out. Links are followed.
    """
    root = root.resolve()
    return {
        name: state
        for name, path in _walk(root)
        if not name.endswith(TRAVELLING)
        and not (reports is not None and written_by_tool(root / name, reports))
        and (state := content(path)) is not None
    }


def written_by_tool(path: Path, reports: Path) -> bool:
    """Whether a file is a run's report, a verdict or a pointer to one. Source files never are, wherever they lie."""
    reports = reports.resolve()
    return path.is_relative_to(reports) and bool(_WRITTEN.fullmatch(path.relative_to(reports).as_posix()))


def model_state(place: str | None) -> State:
    """The files of a model directory; a config file alone counts as one."""
    if place is None:
        return {}
    path = Path(place)
    if path.is_file():
        return {path.name: content(path)}
    return {"": os.path.realpath(path), **tree_state(path)}


def content(path: Path) -> Any:
    """The hash of a small file, the stat of a large one, None where there is none."""
    try:
        if path.stat().st_size <= HASHED_BYTES:
            return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return stamp(path)


def stamp(path: str | Path) -> list[int] | None:
    """Size, both times and the inode: a change in place moves ctime even where mtime is put back."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def stamps(paths: Iterable[str]) -> State:
    return {path: stamp(path) for path in paths}


def importable(directory: str) -> str | None:
    """A hash of the names in a directory that an import could find, and of the stamps of its .pth files."""
    names = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(_SUFFIXES) or (name.isidentifier() and name != "__pycache__" and entry.is_dir()):
                    told = f"{stamp(entry.path)}" if name.endswith((".pth", ".egg-link")) else ""
                    told += f"{stamp(os.path.join(entry.path, 'METADATA'))}" if name.endswith(".dist-info") else ""
                    names.append(f"{name}\0{told}")
    except OSError:
        return stamp_text(directory)
    return hashlib.sha256("\n".join(sorted(names)).encode(errors="surrogateescape")).hexdigest()


def stamp_text(path: str) -> str | None:
    found = stamp(path)
    return None if found is None else str(found)


def environment(root: Path, variables: Mapping[str, str] | None = None) -> State:
    """Hashes of the variables that could change a result, and of those that a file of the tree names in quotes."""
    # A worker is offline unless it is told otherwise: the one variable that means the same when it is not set.
    now = {"HF_HUB_OFFLINE": "1", **(os.environ if variables is None else variables)}
    named: set[str] = set()
    for name, path in _walk(root.resolve()):
        if name.endswith(".py"):
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if b"environ" in data or b"getenv" in data:
                named |= {match.decode() for match in _QUOTED.findall(data)}
    named -= _OF_SHELL
    return {
        name: hashlib.sha256(os.fsencode(value)).hexdigest()[:16]
        for name, value in sorted(now.items())
        if name not in _HARMLESS and (name in named or not _WHERE.fullmatch(name))
    }


def machine() -> State:
    """Processor, kernel, accelerators and their driver, as far as files tell them."""
    system = os.uname()
    cpu = [line for line in _text("/proc/cpuinfo").splitlines() if line.startswith(("model name", "flags"))]
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return {
        "system": f"{system.sysname} {system.release} {system.machine}",
        "processor": hashlib.sha256("\n".join(sorted(set(cpu))).encode()).hexdigest(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "driver": _text("/proc/driver/nvidia/version") or _text("/sys/module/amdgpu/version"),
        "accelerators": [_text(str(gpu)) for gpu in gpus],
        "devices": sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*")),
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    seen: set[str] = set()
    inside: set[str] = set()  # virtual environments, and what lies in them
    for here, directories, names in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:
            directories[:] = []
            continue
        seen.add(real)
        if os.path.dirname(here) in inside or _is_environment(here):
            inside.add(here)
        left_out = {*_LEFT_OUT, *(_OF_ENVIRONMENT if here in inside else ())}
        directories[:] = sorted(name for name in directories if name not in left_out)
        for name in sorted(names):
            path = Path(here, name)
            yield path.relative_to(root).as_posix(), path


def _is_environment(here: str) -> bool:
    interpreters = ("bin/python", "bin/python3", "Scripts/python.exe")
    return os.path.exists(f"{here}/pyvenv.cfg") and any(os.path.lexists(f"{here}/{name}") for name in interpreters)
