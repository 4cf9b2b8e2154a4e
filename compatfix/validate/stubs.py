"""Stand-ins for modules that a tree imports at its top, that are not installed, and that generation does not need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Anything:
    """Takes any use at import time and at logging time: called, indexed, entered, subclassed, used as a decorator."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator must give the function back, or the tree would lose it.
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Anything):
            return args[0]
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def __mro_entries__(self, bases: Sequence[Any]) -> tuple[type, ...]:
        return (object,)

    def __bool__(self) -> bool:
        return False


class StubModule(ModuleType):
    """Has every attribute that it is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything()


def install(name: str) -> None:
    """Puts a stub in the place of `name`. The caller removes it after the import: library code probes for packages."""
    sys.modules[name] = StubModule(name)


def remove(names: Sequence[str]) -> None:
    for name in names:
        if isinstance(sys.modules.get(name), StubModule):
            del sys.modules[name]
