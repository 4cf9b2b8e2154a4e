"""The worker's job "fast paths": which functions the layers of a tiny model really call, by watching a forward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import nn

from compatfix.doctor.facts import FastPath, Observed
from compatfix.doctor.machine import experiment_device
from compatfix.introspect.probes import Bench
from compatfix.introspect.skeleton import decoder_layers_path, kernel_packages
from compatfix.introspect.tiny import TinyError
from compatfix.introspect.words import one_line
from compatfix.packages import BY_MODULE, KERNEL_WORDS, kernel_package

NEW_TOKENS = 3
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


def observe(bench: Bench) -> Observed:
    """Watches what decoding is made of: the library's own generation, then several tokens on a filled cache."""
    device = experiment_device()
    bench.model.to(device)
    calls, error = Calls(), None
    with torch.inference_mode(), calls:
        try:
            bench.model.generate(bench.prompt.to(device), max_new_tokens=NEW_TOKENS, do_sample=False)
        except Exception as raised:
            error = raised
        try:
            bench.forward(bench.block, bench.prefill())
        except Exception as raised:
            # What a cache lacks is no fault of the environment; an exception in a kernel is.
            error = error or (raised if culprit(raised) else None)
    wanted = kernel_packages(bench.model, decoder_layers_path(bench.model))
    paths, others = fast_paths(calls, bench.model, wanted)
    return Observed(
        type(bench.model).__name__,
        device.type,
        paths,
        others,
        None if error is None else one_line(error),
        None if error is None else culprit(error),
    )


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


def attempt(build: Any) -> Bench | Observed:
    """A bench, or why there is none: the tiny model runs forwards while it is built, and a kernel may raise in them."""
    try:
        bench: Bench = build()
        return bench
    except TinyError as error:
        cause = error.__cause__ or error
        return Observed("", experiment_device().type, error=str(error), culprit=culprit(cause))
    except Exception as error:
        return Observed("", experiment_device().type, error=one_line(error), culprit=culprit(error))


def culprit(error: BaseException) -> str | None:
    """The known package in whose code an exception was raised, innermost first."""
    trace, found = error.__traceback__, None
    while trace is not None:
        spec = BY_MODULE.get(top(str(trace.tb_frame.f_globals.get("__name__"))))
        if spec is not None and spec.name not in ("torch", "transformers"):
            found = spec.name
        trace = trace.tb_next
    return found


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
