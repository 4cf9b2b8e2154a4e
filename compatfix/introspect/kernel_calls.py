"""Which kernels the layers of a model really call, found by watching its forwards."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import nn

from compatfix.packages import BY_MODULE, KERNEL_WORDS, kernel_package
from compatfix.profiles import FastPath

# Who calls a kernel: layers, and torch on behalf of a module of a package.
CALLERS = ("transformers", "torch")
# What transformers and torch call besides kernels.
ORDINARY = frozenset(
    {*sys.stdlib_module_names, "torch", "transformers", "compatfix", "numpy", "packaging", "tqdm", "regex", "yaml"}
    | {"huggingface_hub", "accelerate", "safetensors", "tokenizers", "sympy", "typing_extensions", "filelock", "fsspec"}
)
KERNEL_PACKAGES = frozenset(KERNEL_WORDS.values())


class Calls:
    """While entered: every function that runs, and every one by which another package is entered."""

    def __init__(self) -> None:
        self.codes: dict[CodeType, tuple[str, str]] = {}
        self.entered: dict[str, None] = {}

    def __enter__(self) -> Calls:
        sys.setprofile(self._see)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            module = str(frame.f_globals.get("__name__"))
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            self.codes.setdefault(frame.f_code, (module, name))
            caller = frame.f_back.f_globals.get("__name__") if frame.f_back is not None else None
            self._enter(module, name, str(caller))
        elif event == "c_call":
            owner = getattr(arg, "__module__", None)
            if isinstance(owner, str):
                self._enter(owner, arg.__name__, str(frame.f_globals.get("__name__")))

    def _enter(self, module: str, name: str, caller: str) -> None:
        if top(module) not in ORDINARY and top(caller) in CALLERS:
            self.entered.setdefault(f"{module}.{name}")


def fast_paths(calls: Calls, model: nn.Module, wanted: tuple[str, ...]) -> tuple[tuple[FastPath, ...], tuple[str, ...]]:
    """By package what was called of it, or in its place; and functions of packages that nobody knows."""
    of_package: dict[str, list[str]] = {name: [] for name in wanted}
    others = []
    for function in calls.entered:
        spec = BY_MODULE.get(top(function))
        if spec is None or spec.name not in KERNEL_PACKAGES:
            others.append(function)
        else:
            of_package.setdefault(spec.name, []).append(function)
    instead: dict[str, list[str]] = {}
    slots = {slot.code: slot for slot in _slots(model)}
    for code, (module, name) in calls.codes.items():
        package = slots[code].package if code in slots else _by_name(module, name)
        if package is not None and name not in instead.setdefault(package, []):
            instead[package].append(name)
    found = []
    for package in dict.fromkeys((*of_package, *instead)):
        called, substitutes = of_package.get(package, []), instead.get(package, [])
        state = ("partly" if substitutes else "used") if called else "fallback"
        found.append(FastPath(package, state, tuple(called), tuple(substitutes)))
    return tuple(found), tuple(others)


def top(module: str) -> str:
    return module.partition(".")[0]


class _Slot:
    """A function that newer versions wrap: the package's own is called, or `code` where there is none."""

    def __init__(self, package: str, code: CodeType) -> None:
        self.package, self.code = package, code


def _slots(model: nn.Module) -> Iterator[_Slot]:
    modules = {sys.modules[type(module).__module__] for module in model.modules() if _of_library(type(module))}
    for module in modules:
        for function in vars(module).values():
            cells = _closure(function)
            substitute, package = cells.get("torch_function"), cells.get("package")
            if inspect.isfunction(substitute) and isinstance(package, str):
                spec = BY_MODULE.get(top(package))
                yield _Slot(spec.name if spec else package, substitute.__code__)


def _closure(function: Any) -> Mapping[str, Any]:
    if not inspect.isfunction(function) or not function.__closure__:
        return {}
    try:
        return {
            name: cell.cell_contents
            for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True)
        }
    except ValueError:  # a cell that is still empty
        return {}


def _of_library(kind: type[Any]) -> bool:
    return top(kind.__module__) == "transformers" and kind.__module__ in sys.modules


def _by_name(module: str, name: str) -> str | None:
    """A substitute in older versions: a function of the library that is named after the fast one."""
    if not module.startswith("transformers.models.") or "." in name or name.startswith("_"):
        return None
    return kernel_package(name)
