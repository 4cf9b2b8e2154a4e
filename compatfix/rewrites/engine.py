"""Makes the edits of a tree: a byte prefilter, detection on `ast`, and libcst only for files that get a fix."""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compatfix.codes import CODES
from compatfix.model import FileChange, Finding, Fix, Location
from compatfix.rewrites.code import Code
from compatfix.rewrites.flow.evaluate import RUNTIME, Flow
from compatfix.rewrites.flow.objects import Module
from compatfix.rewrites.flow.project import Project
from compatfix.rewrites.roles import Roles
from compatfix.rewrites.rule import Edit, Rule, Unfixed
from compatfix.rewrites.suppress import is_suppressed, suppressions

_PASSES = 8
_DEEPEST = 20_000
_RUNTIME = RUNTIME.encode()


@dataclass
class Result:
    """What the rules do to the files of a tree. `imports_runtime`: at least one file calls the runtime afterwards."""

    changes: list[FileChange] = field(default_factory=list)
    unfixed: list[Finding] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    suppressed: dict[str, int] = field(default_factory=dict)
    imports_runtime: bool = False


@dataclass(frozen=True)
class _Found:
    rule: type[Rule]
    edit: Edit


def rewrite(sources: Mapping[str, bytes], rules: Sequence[type[Rule]], selected: set[str], package: str = "") -> Result:
    """Runs the rules on files by path until nothing changes. `package` names the root where it is itself a package."""
    # Long sums and chains of calls nest deeper than Python's default limit, and are no reason to give up.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        return _rewrite(sources, rules, selected, package)
    finally:
        sys.setrecursionlimit(limit)


def _rewrite(sources: Mapping[str, bytes], rules: Sequence[type[Rule]], selected: set[str], package: str) -> Result:
    result = Result()
    now = dict(sources)
    fixes: dict[str, list[Fix]] = {}
    stuck: set[str] = set()
    for number in range(_PASSES):
        files = _Files(now)
        found, unfixed, ignored, suppressed = _detect(files, rules, selected, package)
        if number == 0:  # places are those of the files as they are on disk
            result.ignored, result.suppressed = ignored, suppressed
            result.unfixed = [*files.broken, *unfixed]
        changed = False
        for path, items in found.items():
            if path in stuck:
                continue
            elsewhere = _names_taken_by_others(path, files)
            outcome = _apply(path, now[path], files.trees[path], items, package, sources, elsewhere)
            if isinstance(outcome, Finding):
                stuck.add(path)
                result.unfixed.append(outcome)
                continue
            data, made = outcome
            changed |= data != now[path]
            now[path] = data
            fixes.setdefault(path, []).extend(made)
        if not changed:
            break
    result.changes = [
        FileChange(path, sources[path], data, tuple(fixes.get(path, ())))
        for path, data in now.items()
        if data != sources[path]
    ]
    result.imports_runtime = any(_RUNTIME in data for data in now.values())
    return result


class _Files:
    """Files parsed on demand; what cannot be parsed is remembered as a finding."""

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self.sources = sources
        self.trees: dict[str, ast.Module] = {}
        self.broken: list[Finding] = []
        self._tried: set[str] = set()

    def parse(self, path: str) -> ast.Module | None:
        if path in self._tried:
            return self.trees.get(path)
        self._tried.add(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # odd escapes in somebody's strings are not our news
                self.trees[path] = ast.parse(self.sources[path], filename=path)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.broken.append(broken_file(path, error))
            return None
        return self.trees[path]


def broken_file(path: str, error: Exception) -> Finding:
    line = getattr(error, "lineno", None)
    reason = getattr(error, "msg", None) or str(error) or type(error).__name__
    return Finding("CF908", CODES["CF908"].level, "read", f"not rewritten: {reason}", Location(path, line))


def _detect(
    files: _Files, rules: Sequence[type[Rule]], selected: set[str], package: str
) -> tuple[dict[str, list[_Found]], list[Finding], dict[str, int], dict[str, int]]:
    sources = files.sources
    project = Project(sources, files.parse, package)
    awake = _load(project, files, rules)
    flow = Flow(project)
    flow.run()
    roles = Roles(flow)
    found: dict[str, list[_Found]] = {}
    unfixed: list[Finding] = []
    ignored: dict[str, int] = {}
    suppressed: dict[str, int] = {}
    for module in project.modules():
        code = Code(module, roles, frozenset(selected))
        off = suppressions(sources[module.path])
        lines = decoded_lines(sources[module.path])
        in_strings = {n for s in ast.walk(module.tree) if isinstance(s, ast.JoinedStr) for n in ast.walk(s)}
        for node in _in_order(module):
            for rule in awake:
                outcome = rule.visit(node, code)
                if outcome is None:
                    continue
                if is_suppressed(rule.code, outcome.node, code.statement(node), off):
                    suppressed[rule.code] = suppressed.get(rule.code, 0) + 1
                    continue
                if isinstance(outcome, Edit) and node in in_strings:
                    # Before Python 3.12 the places of expressions inside f-strings are not to be had.
                    outcome = Unfixed(code.statement(node), "stands inside an f-string; move the expression out of it")
                if rule.code not in selected:
                    ignored[rule.code] = ignored.get(rule.code, 0) + 1
                elif isinstance(outcome, Unfixed):
                    place = location(module.path, outcome.node, lines)
                    unfixed.append(Finding(rule.code, CODES[rule.code].level, "read", outcome.reason, place))
                else:
                    found.setdefault(module.path, []).append(_Found(type(rule), outcome))
                    break
    return found, unfixed, ignored, suppressed


def _load(project: Project, files: _Files, rules: Sequence[type[Rule]]) -> list[Rule]:
    """Loads the files that matter and gives the rules that something in the tree wakes.

    Those with the trigger of a rule matter, what they import, and files that name one of them: a rule's trigger may
    stand in a helper and the code to edit in its caller. The rest is parsed, to say where it is broken, and no more.
    """
    sources = files.sources
    awake = [rule() for rule in rules if any(t in data for data in sources.values() for t in rule.trigger)]
    pending = [
        path for path, data in sources.items() if any(t in data for r in awake for t in r.trigger) or _RUNTIME in data
    ]
    while pending:
        for path in pending:
            project.load(path)
        names = {_module_name(module.path) for module in project.modules()}
        loaded = {module.path for module in project.modules()}
        pending = [
            path
            for path, data in sources.items()
            if path not in loaded and files.parse(path) is not None and any(name in data for name in names)
        ]
    return awake


def _module_name(path: str) -> bytes:
    parts = path.removesuffix("/__init__.py").removesuffix(".py").split("/")
    return os.fsencode(parts[-1])


def _in_order(module: Module) -> list[ast.AST]:
    nodes = [node for node in ast.walk(module.tree) if hasattr(node, "lineno")]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset))  # type: ignore[attr-defined]


def _names_taken_by_others(path: str, files: _Files) -> set[str]:
    """Names that other files may get from this one: they stay imported here. `*` stands for all."""
    if path.endswith("__init__.py"):
        return {"*"}
    stem = os.fsdecode(_module_name(path))
    taken: set[str] = set()
    for other, tree in files.trees.items():
        if other == path or os.fsencode(stem) not in files.sources[other]:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == stem:
                taken.update(alias.name for alias in node.names)
            elif isinstance(node, ast.Attribute):
                value = node.value
                if stem in (getattr(value, "id", None), getattr(value, "attr", None)):
                    taken.add(node.attr)
    return taken


def _apply(
    path: str,
    data: bytes,
    tree: ast.Module,
    items: Sequence[_Found],
    package: str,
    paths: Mapping[str, bytes],
    elsewhere: set[str],
) -> tuple[bytes, list[Fix]] | Finding:
    # The concrete syntax is loaded here and nowhere else: listing and explaining rules must not pay for it.
    import libcst as cst

    from compatfix.rewrites import imports, transform

    lines = decoded_lines(data)
    try:
        module = cst.parse_module(data)
        if module.bytes != data:
            raise transform.NotReproduced("the parser does not give the file back byte for byte")
        edits = [item.edit for item in items]
        names, missing = imports.local_names(tree, (name for edit in edits for name in edit.runtime))
        done = transform.edited(module, lines, edits, names)
        source = runtime_module(path, tree, package, paths)
        module = imports.with_import(done.module, source, missing, names, _first_use(tree, edits))
        after = ast.parse(module.bytes)
        module = imports.without_unused(module, tree, after, elsewhere)
        changed = module.bytes
        ast.parse(changed)
    except (cst.ParserSyntaxError, transform.NotReproduced, SyntaxError, ValueError, RecursionError) as error:
        return broken_file(path, error)
    fixes = [
        Fix(item.rule.code, location(path, item.edit.node, lines), *done.sources[number], safe=item.rule.safe)
        for number, item in enumerate(items)
    ]
    return changed, fixes


def _first_use(tree: ast.Module, edits: Sequence[Edit]) -> int:
    """The number of the first top-level statement that runs an edited expression when the module is imported."""
    for number, statement in enumerate(tree.body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        end = statement.end_lineno or statement.lineno
        if any(edit.runtime and statement.lineno <= edit.node.lineno <= end for edit in edits):
            return number
    return len(tree.body)


def runtime_module(path: str, tree: ast.Module, package: str, paths: Mapping[str, bytes]) -> str:
    """How this file imports the runtime: by its name, or relative where the tree itself is a package."""
    depth = path.count("/")
    if not package:
        return RUNTIME
    tops = {p.split("/")[0].removesuffix(".py") for p in paths if p != "__init__.py"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in tops:
            return RUNTIME  # this file is run with the root on the path
    return "." * (depth + 1) + RUNTIME


def location(path: str, node: ast.AST, lines: Sequence[str]) -> Location:
    from_bytes = getattr(node, "col_offset", 0)
    line = getattr(node, "lineno", 1)
    text = lines[line - 1] if line <= len(lines) else ""
    column = len(text.encode("utf-8", "surrogatepass")[:from_bytes].decode("utf-8", "ignore"))
    return Location(path, line, column + 1)


def decoded_lines(data: bytes) -> list[str]:
    """The text of a file by line, in the encoding that it declares."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding).removeprefix("\ufeff")
    return io.StringIO(text, newline=None).read().split("\n")
