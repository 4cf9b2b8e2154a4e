"""The fingerprint of a green verdict: made at the end of a run, compared before the next one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compatfix.attest.state import (
    State,
    environment,
    importable,
    machine,
    model_state,
    stamp,
    stamps,
    tree_state,
)

SCHEMA = 1


@dataclass(frozen=True)
class Request:
    """What is asked for: everything a user can choose, by the names that are told when they differ.

    `hub` has, for a target or draft that was given by hub id, that id and the commit that it means now.
    """

    tree: Path
    target: str
    draft: str | None
    report_dir: Path
    options: Mapping[str, Any]
    hub: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def name(self, part: str) -> str | None:
        """What the target or the draft was called: its hub id, or its path."""
        path: str | None = getattr(self, part)
        return self.hub[part][0] if part in self.hub else path


@dataclass
class Used:
    """What a run really used; filled by the run. `tree` is the state of the tree that was judged, `observed` what its
    runtime saw (validate/observed.py)."""

    files: set[str] = field(default_factory=set)
    place: dict[str, Any] = field(default_factory=dict)
    tree: State = field(default_factory=dict)
    observed: tuple[Mapping[str, Any], ...] = ()


def chosen(request: Request) -> State:
    """Sections that need no run to be known."""
    return {
        "options": dict(request.options),
        "tree": tree_state(request.tree, request.report_dir),
        "target": _model(request, "target"),
        "draft": _model(request, "draft"),
        "environment": environment(request.tree),
        "machine": machine(),
    }


def _model(request: Request, part: str) -> State:
    """The files of a model; one from the hub is the commit that was resolved, wherever its files are kept."""
    state = model_state(getattr(request, part))
    if part not in request.hub:
        return state
    return {"commit": request.hub[part][1], **{name: told for name, told in state.items() if name}}


def learned(request: Request, used: Used) -> State:
    """Sections that only a run can tell: the files that were read, and the directories in which imports look."""
    own = [str(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
    own += [str(path) for path in Path(__file__).parent.parent.rglob("*.py")]
    root = request.tree.resolve()
    hashed = {str(root / name) for name in tree_state(request.tree, request.report_dir)}
    files = {name for name in {*own, *used.files} if os.path.isabs(name) and name not in hashed and not _scratch(name)}
    place = used.place
    if place:
        files |= {place["executable"], os.path.realpath(place["executable"]), str(Path(place["prefix"], "pyvenv.cfg"))}
    looked = {os.path.abspath(entry) for entry in sys.path if entry} | set(place.get("path", ()))
    looked |= {place["user_site"]} if place else set()
    looked |= {os.path.dirname(name) for name in files if name.endswith((".py", ".so"))}
    return {
        "files": stamps(sorted(files)),
        "directories": {name: importable(name) for name in sorted(looked) if not _scratch(name)},
        "python": dict(place),
    }


def now_of(saved: Mapping[str, Any], request: Request) -> State:
    """The state now of everything that a saved fingerprint speaks of."""
    return {
        **chosen(request),
        "files": stamps(saved["files"]),
        "directories": {name: importable(name) for name in saved["directories"]},
        "python": saved["python"],
    }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs, most telling first, in words."""
    for section, say in _WORDS.items():
        old, new = saved[section], now[section]
        for name in sorted(old.keys() | new.keys()):
            if name not in old or name not in new or old[name] != new[name]:
                yield say(name, old.get(name), new.get(name))


def moved(files: Mapping[str, list[int] | None], began_ns: int) -> list[str]:
    """Files that were changed since the run began: what was read of them is not known."""
    return [name for name, state in files.items() if state is not None and state[2] >= began_ns]


def young(directories: Iterable[str], began_ns: int) -> list[str]:
    """Importable files that came since the run began."""
    found = []
    for directory in directories:
        own = stamp(directory)
        if own is None or own[1] < began_ns:
            continue
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        paths = [os.path.join(directory, name) for name in names if name.endswith((".py", ".so", ".pth", ".dist-info"))]
        found += moved(stamps(paths), began_ns)
    return found


def _option(name: str, old: Any, new: Any) -> str:
    if max(len(str(old)), len(str(new))) > 60:
        return f"{name} differs"
    return f"{name} is {new}, judged {old}"


def _file(where: str) -> Any:
    def say(name: str, old: Any, new: Any) -> str:
        what = "is new" if old is None else "is gone" if new is None else "differs"
        return f"{where}{name} {what}" if name else f"{where}is another directory"

    return say


def _variable(name: str, old: Any, new: Any) -> str:
    return f"environment variable {name} " + ("is set" if old is None else "is unset" if new is None else "differs")


_WORDS: dict[str, Any] = {
    "options": _option,
    "tree": _file(""),
    "target": _file("target: "),
    "draft": _file("draft: "),
    "environment": _variable,
    "machine": lambda name, old, new: f"the machine's {name} differs",
    "files": _file(""),
    "directories": lambda name, old, new: f"modules or packages in {name} came or went",
}


def _scratch(name: str) -> bool:
    """The patched copy and its like, which are gone when the run ends."""
    return name.startswith(os.path.join(os.path.realpath(tempfile.gettempdir()), "compatfix-")) and not os.path.exists(
        name
    )
