"""Imports a tree as its own scripts would, and finds what can be run in it by signature.

The tree's root comes first on the path. Nothing of the tree or the library is neutralised; only modules that are not
installed and that stop the import get a stub, and every stub is reported.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from compatfix.validate import stubs
from compatfix.validate.entries import (
    Chosen,
    Entry,
    TreeError,
    check_modules,
    choose,
    find_entries,
    parameter_names,
    unrun,
)
from compatfix.validate.roles import Choices
from compatfix.validate.tree_source import (
    DRAFTS,
    SourceFile,
    imported_names,
    loader_class,
    modules_to_import,
    nearest,
    parse_tree,
    scripts,
)
from compatfix.validate.unjudged import unjudged

MAX_STUBS = 40
NO_CHOICES = Choices()


@dataclass(frozen=True)
class LoadedTree:
    """`loop` is the draft's own generation method; `loader` the class that loads the target."""

    root: Path
    modules: tuple[ModuleType, ...]
    chain: Entry | None
    tree: Entry | None
    draft_class: type | None
    loop: Entry | None
    loader: str | None
    loader_place: str | None
    stubbed: tuple[str, ...]
    broken: dict[str, str]
    not_judged: tuple[str, ...] = ()

    @property
    def has_runtime(self) -> bool:
        return (self.root / "compatfix_runtime").is_dir()


def load_tree(root: Path, choices: Choices = NO_CHOICES) -> LoadedTree:
    """Raises TreeError: CF906 not importable, CF907 nothing to run, CF914 a module came from elsewhere."""
    root = root.resolve()
    files, broken = parse_tree(root)
    wanted = modules_to_import(files)
    check_modules(choices, [file.module for file in files])
    wanted += [name for name in dict.fromkeys(entry.module for entry in choices.entries) if name not in wanted]
    if not wanted:
        message = "no function takes a draft, a target, input_ids, max_new_tokens and stop_token_ids"
        raise TreeError("CF907", _with_nearest(message, nearest(files)), broken=broken)
    tops = {file.module.split(".")[0] for file in files if file.module} | {"compatfix_runtime"}
    modules, stubbed = _import(root, [*wanted, *scripts(files, wanted)], tops)
    _check_homes(root, tops)
    draft_class = next(_draft_classes(modules), None)
    used = imported_names(files)
    entries = find_entries(modules, choices)
    # What the scripts run comes first; sorting keeps the order otherwise.
    entries.sort(key=lambda entry: (entry.module, entry.name) not in used)
    chosen = choose(entries, modules, draft_class, choices)
    if chosen.chain is None and chosen.tree is None:
        message = "no generation function takes a draft, a target and input_ids"
        raise TreeError("CF907", _with_nearest(message, nearest(files)), modules=wanted)
    if draft_class is None:
        raise TreeError("CF907", "no draft class: a model whose forward takes target_hidden and noise_embedding")
    loader = loader_class(files)
    everything = tuple(m for name, m in sys.modules.items() if name.split(".")[0] in tops and m is not None)
    return LoadedTree(
        root=root,
        modules=everything,
        chain=chosen.chain,
        tree=chosen.tree,
        draft_class=draft_class,
        loop=chosen.loop,
        loader=loader[0] if loader else None,
        loader_place=loader[1] if loader else None,
        stubbed=stubbed,
        broken=broken,
        not_judged=_not_judged(files, entries, chosen),
    )


def _not_judged(files: Sequence[SourceFile], entries: Sequence[Entry], chosen: Chosen) -> tuple[str, ...]:
    """Entry points that are not run, then other code that generates and that nothing judged leads to."""
    named = unrun(entries, [entry for entry in (chosen.chain, chosen.tree) if entry is not None])
    judged = []
    for entry in (chosen.chain, chosen.tree, chosen.loop):
        if entry is not None:
            function = inspect.unwrap(entry.function)
            judged += [(entry.module, entry.name), (function.__module__, getattr(function, "__qualname__", ""))]
    others = unjudged(files, judged, [(module, name) for module, _, name in (place.rpartition(".") for place in named)])
    return tuple(dict.fromkeys([*named, *others]))


def _with_nearest(message: str, near: str | None) -> str:
    return f"{message}; if it is another function, name it: {near}" if near else message


def _import(root: Path, wanted: list[str], tops: set[str]) -> tuple[list[ModuleType], tuple[str, ...]]:
    for directory in (root / "src", root):
        if directory.is_dir():
            sys.path.insert(0, str(directory))
    stubbed: list[str] = []
    try:
        while True:
            _forget(tops)
            try:
                modules = [importlib.import_module(name) for name in wanted]
                return modules, tuple(stubbed)
            except ModuleNotFoundError as error:
                name = error.name
                if not name or name in stubbed or name.split(".")[0] in tops or len(stubbed) >= MAX_STUBS:
                    raise
                stubs.install(name)
                stubbed.append(name)
    except Exception as error:
        raise TreeError(
            "CF906", f"{type(error).__name__}: {error}", place=place_in(root, error), stubbed=stubbed
        ) from error
    finally:
        stubs.remove(stubbed)


def _forget(tops: set[str]) -> None:
    """A module of the same name from elsewhere, or from a failed try, must not be taken for the tree's."""
    for name in list(sys.modules):
        if name.split(".")[0] in tops:
            del sys.modules[name]


def _check_homes(root: Path, tops: set[str]) -> None:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in tops:
            continue
        file = getattr(module, "__file__", None)
        homes: list[str] = [file] if file else list(getattr(module, "__path__", []))
        for home in homes:
            if not Path(home).resolve().is_relative_to(root):
                raise TreeError("CF914", f"module {name} of the tree was imported from elsewhere", module=name)


def place_in(root: Path, error: BaseException) -> dict[str, Any] | None:
    """The innermost line of the tree itself (not of the runtime copied into it) that the exception went through."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(root):
        return {"file": Path(error.filename).relative_to(root).as_posix(), "line": error.lineno, "function": ""}
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_absolute() and path.resolve().is_relative_to(root):
            relative = path.resolve().relative_to(root)
            if relative.parts[0] != "compatfix_runtime":
                found = {"file": relative.as_posix(), "line": frame.lineno, "function": frame.name}
                found["source"] = frame.line or ""
    return found


def layer_in(error: BaseException, owners: Sequence[tuple[str, Any]] = ()) -> dict[str, Any] | None:
    """The innermost layer that the exception came through: one of a cache's layers, or a module with a layer_idx.

    `owners` are caches and models with their names ("the target's cache"); `of` is the name of the layer's owner, None
    where it is not known.
    """
    found: dict[str, Any] | None = None
    holders = [holder for _, holder in owners]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        known = getattr(owner, "__dict__", {})
        what = {"class": type(owner).__name__, "function": frame.f_code.co_name}
        for holder in holders:
            for index, layer in enumerate(_layers(holder)):
                if layer is owner:
                    found = {"layer": index, **what, "of": _name_of(holder, owners)}
        if isinstance(known.get("layer_idx"), int):
            found = {"layer": known["layer_idx"], **what, "of": _name_of(owner, owners)}
        if isinstance(known.get("layers"), list):
            holders.append(owner)
    return found


def _layers(holder: Any) -> Sequence[Any]:
    layers = getattr(holder, "__dict__", {}).get("layers")
    return layers if isinstance(layers, list) else ()


def _name_of(part: Any, owners: Sequence[tuple[str, Any]]) -> str | None:
    """Whose a cache is by identity, whose a module is by the model that holds it."""
    for name, owner in owners:
        modules = getattr(owner, "modules", None)
        if owner is part or (callable(modules) and any(module is part for module in modules())):
            return name
    return None


def _draft_classes(modules: list[ModuleType]) -> Iterator[type]:
    from transformers import PreTrainedModel

    for module in modules:
        for value in vars(module).values():
            if not inspect.isclass(value) or value.__module__ != module.__name__:
                continue
            if issubclass(value, PreTrainedModel) and set(parameter_names(getattr(value, "forward", None))) >= DRAFTS:
                yield value
