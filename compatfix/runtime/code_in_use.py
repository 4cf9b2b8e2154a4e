"""Which code really runs: forwards of classes, what was put in the place of functions, and who calls. As plain data."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import nn

_HERE = os.path.dirname(os.path.realpath(__file__))
# Their hooks come and go with devices and outputs; their versions are compared.
_KNOWN = ("torch", "transformers", "accelerate")
_WRAPPED = 8


def forwards(models: Iterable[nn.Module]) -> dict[str, str]:
    """For each class of a module, by its module and name: a digest of the code of its forward and those it inherits."""
    found: dict[str, set[str]] = {}
    for kind in {type(part) for model in models for part in model.modules()}:
        own = [vars(base)["forward"] for base in kind.__mro__ if base is not nn.Module and "forward" in vars(base)]
        digest = hashlib.sha256(repr([digest_of_code(function) for function in own]).encode()).hexdigest()[:16]
        found.setdefault(f"{kind.__module__}.{kind.__qualname__}", set()).add(digest)
    return {name: "+".join(sorted(digests)) for name, digests in sorted(found.items())}


def attached(models: Iterable[nn.Module], root: Path | None) -> list[str]:
    """Hooks and forwards of single modules that come from elsewhere than the tree, torch and transformers."""
    every = torch.nn.modules.module
    general = (*every._global_forward_pre_hooks.values(), *every._global_forward_hooks.values())
    found = {f"every module is hooked by {name}" for name in _strange(general, root)}
    for part in (part for model in models for part in model.modules()):
        what, own = type(part).__qualname__, vars(part)
        hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
        found |= {f"{what} is hooked by {name}" for name in _strange(hooks, root)}
        forward = (own["forward"],) if "forward" in own else ()
        found |= {f"the forward of one {what} is {name}" for name in _strange(forward, root)}
    return sorted(found)


def functions(modules: Iterable[ModuleType]) -> dict[str, str]:
    """What every global of these modules that can be called is: the files and names of a function and what it wraps."""
    found = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            if callable(value) and not isinstance(value, type):
                found[f"{module.__name__}.{name}"] = " of ".join(_whence(layer) for layer in _unwrapped(value))
    return found


def _whence(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return type(function).__qualname__
    return f"{_place(code.co_filename)}:{function.__qualname__}"


def attention_code(implementation: str) -> str | None:
    """A digest of the function that transformers has under this name; None where it has none."""
    functions = getattr(sys.modules.get("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", None)
    function = functions.get(implementation) if functions is not None else None
    return None if function is None else digest_of_code(function)


def caller() -> str:
    """The file of the code that called into this package."""
    own = (_HERE, *(os.path.dirname(os.path.realpath(str(sys.modules[name].__file__))) for name in _loaded(_KNOWN[:2])))
    frame = sys._getframe(1)
    while frame.f_back is not None and _below(frame.f_code.co_filename, own):
        frame = frame.f_back
    return frame.f_code.co_filename


def digest_of_code(function: Any) -> str:
    """A digest of what a function does and of where its file lies among packages or in the tree."""
    told = [
        (_place(code.co_filename), _plain(code)) if isinstance(code, CodeType) else type(layer).__qualname__
        for layer in _unwrapped(function)
        for code in (getattr(layer, "__code__", None),)
    ]
    return hashlib.sha256(repr(told).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _unwrapped(function: Any) -> Iterator[Any]:
    """A function, and those that it says it wraps."""
    for _ in range(_WRAPPED):
        yield function
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return


def _plain(code: CodeType) -> Any:
    constants = [
        _plain(value)
        if isinstance(value, CodeType)
        else sorted(map(repr, value))
        if isinstance(value, frozenset)
        else repr(value)
        for value in code.co_consts
    ]
    return code.co_code, code.co_names, constants


@functools.lru_cache(maxsize=4096)
def _place(file: str) -> str:
    """A path that does not depend on where a tree or an environment lies."""
    real = os.path.realpath(file)
    if _below(real, (os.path.dirname(_HERE),)):
        return os.path.relpath(real, os.path.dirname(_HERE))
    return real.rpartition("site-packages" + os.sep)[2] if "site-packages" in real else os.path.basename(real)


def _strange(functions: Iterable[Callable[..., Any]], root: Path | None) -> Iterator[str]:
    places = [_HERE, *([str(root)] if root is not None else [])]
    places += [os.path.dirname(os.path.realpath(str(sys.modules[name].__file__))) for name in _loaded(_KNOWN)]
    for function in functions:
        plain = getattr(function, "func", function)  # a partial
        code = getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)
        if code is None or not _below(code.co_filename, places):
            name = getattr(plain, "__qualname__", type(plain).__qualname__)
            yield f"{name} of {_place(code.co_filename) if code is not None else 'no file'}"


def _loaded(names: Iterable[str]) -> list[str]:
    return [name for name in names if getattr(sys.modules.get(name), "__file__", None)]


def _below(file: str, places: Iterable[str]) -> bool:
    real = os.path.realpath(file)
    return any(real.startswith(place + os.sep) for place in places)
