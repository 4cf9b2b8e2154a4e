"""The files of a tree as modules that import one another; files are parsed when they are first needed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from compatfix.rewrites.flow.objects import Module, Scope
from compatfix.rewrites.flow.scopes import build_scopes


class Project:
    """Modules by path. `parse` gives the tree of a file or None; `paths` are all Python files, relative and posix.

    `name` is the name of the root directory where the root itself is a package, else empty.
    """

    def __init__(self, paths: Iterable[str], parse: Callable[[str], ast.Module | None], name: str = "") -> None:
        self._paths = set(paths)
        self._parse = parse
        self._name = name
        self._modules: dict[str, Module | None] = {}
        self._scopes: dict[Module, dict[ast.AST, Scope]] = {}

    def load(self, path: str) -> Module | None:
        """The module of a file, with every module of the tree that it imports."""
        pending = [path]
        while pending:
            here = pending.pop()
            if here in self._modules:
                continue
            tree = self._parse(here)
            if tree is None:
                self._modules[here] = None
                continue
            module = Module(here, tree, _dotted(here), PurePosixPath(here).name == "__init__.py")
            self._modules[here] = module
            self._scopes[module] = build_scopes(module)
            pending.extend(self._imported_paths(module))
        return self._modules[path]

    def modules(self) -> list[Module]:
        return [module for module in self._modules.values() if module is not None]

    def scopes(self, module: Module) -> dict[ast.AST, Scope]:
        return self._scopes[module]

    def absolute(self, node: ast.ImportFrom, module: Module) -> str:
        """The dotted path that `from … import` names, with its leading dots resolved."""
        if not node.level:
            return node.module or ""
        parts = module.package.split(".") if module.package else []
        parts = parts[: len(parts) - node.level + 1] if node.level > 1 else parts
        return ".".join([*parts, *([node.module] if node.module else [])])

    def find(self, dotted: str, importer: Module) -> Module | None:
        path = self.path_of(dotted, importer)
        return self._modules.get(path) if path else None

    def path_of(self, dotted: str, importer: Module) -> str | None:
        """The file that an import reads: beside the importing script, then from the root of the tree."""
        if not dotted:
            return "__init__.py" if "__init__.py" in self._paths else None
        beside = importer.path.rpartition("/")[0]
        tail = PurePosixPath(*dotted.split("."))
        bases = [beside, ""] if beside else [""]
        candidates = [PurePosixPath(base) / tail for base in bases]
        if self._name and dotted.split(".")[0] == self._name:
            candidates.append(PurePosixPath(*dotted.split(".")[1:]))
        for candidate in candidates:
            for path in (f"{candidate}.py", f"{candidate}/__init__.py"):
                clean = path.removeprefix("./")
                if clean in self._paths and clean != importer.path:
                    return clean
        return None

    def _imported_paths(self, module: Module) -> list[str]:
        found: list[str] = []
        for node in ast.walk(module.tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = self.absolute(node, module)
                names = [base, *(f"{base}.{alias.name}" if base else alias.name for alias in node.names)]
            found.extend(path for name in names if (path := self.path_of(name, module)))
        return found


def _dotted(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
