"""What a tree's source says before anything is imported: which files generate, which class loads the target."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compatfix.validate.roles import GENERATES, LEAST, advice, generates, roles_of

# Directories that hold no code that a generation script imports.
SKIPPED = {"tests", "test", "docs", "examples", "build", "dist", "node_modules", "__pycache__", "compatfix_runtime"}
DRAFTS = {"target_hidden", "noise_embedding"}
CACHE_ARGUMENTS = ("past_key_values", "cache")
MAX_DEPTH = 3
MAX_LIKES = 3


@dataclass(frozen=True)
class SourceFile:
    """One parsed file: `module` is its dotted name from the tree's root."""

    path: Path
    module: str
    syntax: ast.Module


def parse_tree(root: Path) -> tuple[list[SourceFile], dict[str, str]]:
    """Every Python file that parses, and what was wrong with the others."""
    found, broken = [], {}
    for path in _python_files(root):
        try:
            syntax = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError, OSError) as error:
            broken[path.relative_to(root).as_posix()] = str(error)
            continue
        found.append(SourceFile(path, _module_name(root, path), syntax))
    return found, broken


def modules_to_import(files: list[SourceFile]) -> list[str]:
    """Modules that define a generation function or a draft class; what they import comes with them."""
    return [file.module for file in files if any(_matters(node) for node in ast.walk(file.syntax))]


def nearest(files: list[SourceFile]) -> str | None:
    """The function that comes closest to a generation function, the options that would make it one, and its likes."""
    found: list[tuple[int, str, str]] = []
    for file in files:
        for node in file.syntax.body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            names = _arguments(node)
            roles = roles_of(names)
            score = len(roles) + ("generate" in node.name) + 2 * _decodes(node)
            if score < 2 or len(names) < 3:
                continue
            needed = names[: len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)]
            unknown = [name for name in needed if name not in roles.values()]
            place = f"{file.module}:{node.name}"
            found.append((score, place, advice(place, unknown, (LEAST | GENERATES) - roles.keys())))
    if not found:
        return None
    best, chosen, options = max(found, key=lambda one: one[0])
    likes = [f"--entry {place}" for score, place, _ in found if score == best and place != chosen]
    return options + (f"; likewise {', '.join(likes[:MAX_LIKES])}" if likes else "")


def _decodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it calls something with a cache and reads logits, as decoding does under whatever names."""
    nodes = list(ast.walk(function))
    with_cache = any(isinstance(node, ast.keyword) and node.arg in CACHE_ARGUMENTS for node in nodes)
    return with_cache and any(isinstance(node, ast.Attribute) and node.attr == "logits" for node in nodes)


def scripts(files: list[SourceFile], wanted: list[str]) -> list[str]:
    """Scripts at the root that import a generating module. Only those that do nothing unless run as a program."""
    return [
        file.module
        for file in files
        if file.module not in wanted and "." not in file.module and _is_guarded(file) and _imports(file) & set(wanted)
    ]


def imported_names(files: list[SourceFile]) -> set[tuple[str, str]]:
    """(module, name) of everything that a script takes from a module of the tree."""
    return {
        (node.module, alias.name)
        for file in files
        if _is_guarded(file)
        for node in ast.walk(file.syntax)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _is_guarded(file: SourceFile) -> bool:
    return any(isinstance(node, ast.If) and "__main__" in ast.dump(node.test) for node in file.syntax.body)


def _imports(file: SourceFile) -> set[str]:
    found = set()
    for node in file.syntax.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def loader_class(files: list[SourceFile]) -> tuple[str, str] | None:
    """(class, place) of the `X.from_pretrained(…)` that loads the target, or None where no script loads one.

    Preferred: an assignment to a name with "target" in it; else the first Auto class for language models.
    """
    best: tuple[int, str, str] | None = None
    for file in files:
        for node in ast.walk(file.syntax):
            call = _loading_call(node)
            if call is None:
                continue
            name, line, names = call
            if name.endswith(("Tokenizer", "Processor", "Config")) or "tokenizer" in name.lower():
                continue
            score = 2 * any("target" in n for n in names) + name.startswith("AutoModel")
            score -= 2 * any("draft" in n for n in names) + ("Draft" in name or "DFlash" in name)
            if score > 0 and (best is None or score > best[0]):
                best = (score, name, f"{file.path.name}:{line}")
    return None if best is None else best[1:]


def _python_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if len(parts) > MAX_DEPTH or path.name in ("setup.py", "conftest.py"):
            continue
        if not any(part in SKIPPED or part.startswith(".") for part in parts[:-1]):
            yield path


def _module_name(root: Path, path: Path) -> str:
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    if len(parts) > 1 and parts[0] == "src":
        parts.pop(0)
    return ".".join(parts)


def _matters(node: ast.AST) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    names = _arguments(node)
    return generates(names) or set(names) >= DRAFTS


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _loading_call(node: ast.AST) -> tuple[str, int, list[str]] | None:
    """(class name, line, names assigned to) of an assignment or return whose value loads something."""
    if isinstance(node, ast.Assign):
        value, names = node.value, [n for t in node.targets for n in _names(t)]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        value, names = node.value, _names(node.target)
    elif isinstance(node, ast.Return) and node.value is not None:
        value, names = node.value, []
    else:
        return None
    for call in ast.walk(value):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        owner = call.func.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if call.func.attr == "from_pretrained" and name:
            return name, call.lineno, names
    return None


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, (ast.Tuple, ast.List)):
        return [n for element in node.elts for n in _names(element)]
    if isinstance(node, ast.Attribute):
        return [node.attr.lower()]
    return [node.id.lower()] if isinstance(node, ast.Name) else []
