"""What the reference tree gets, written out, and that the patched tree is stable, compiles and imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from compatfix.rewrites import apply, diff, plan, plausible_fix, render_plan, undo

WANTED = Counter(
    {
        ("dflash.py", "dflash_generate", "CF101"): 1,
        ("dflash.py", "dflash_generate", "CF102"): 1,
        ("dflash.py", "dflash_generate", "CF201"): 1,
        ("dflash.py", "dflash_generate", "CF202"): 2,
        ("dflash.py", "dflash_generate", "CF203"): 2,
        ("dflash.py", "dflash_generate", "CF408"): 1,
        ("dflash.py", "dflash_generate", "CF611"): 2,
        ("dflash.py", "dflash_generate", "CF701"): 1,
        ("dflash.py", "cuda_time", "CF601"): 1,
        ("ddtree.py", "ddtree_generate", "CF101"): 1,
        ("ddtree.py", "ddtree_generate", "CF102"): 1,
        ("ddtree.py", "ddtree_generate", "CF201"): 1,
        ("ddtree.py", "ddtree_generate", "CF202"): 2,
        ("ddtree.py", "ddtree_generate", "CF203"): 1,
        ("ddtree.py", "ddtree_generate", "CF206"): 1,
        ("ddtree.py", "ddtree_generate", "CF408"): 1,
        ("ddtree.py", "ddtree_generate", "CF611"): 2,
        ("ddtree.py", "ddtree_generate", "CF701"): 1,
        ("model/dflash.py", "spec_generate", "CF101"): 1,
        ("model/dflash.py", "spec_generate", "CF102"): 1,
        ("model/dflash.py", "spec_generate", "CF201"): 1,
        ("model/dflash.py", "spec_generate", "CF202"): 2,
        ("model/dflash.py", "spec_generate", "CF203"): 2,
        ("model/dflash.py", "spec_generate", "CF408"): 1,
        ("model/dflash.py", "spec_generate", "CF611"): 2,
        ("model/dflash.py", "spec_generate", "CF701"): 1,
        ("model/dflash.py", "forward", "CF501"): 1,
        ("model/utils.py", "extract_context_feature", "CF103"): 1,
        ("benchmark.py", "load_models", "CF602"): 2,
        ("benchmark.py", "run_tree", "CF602"): 1,
    }
)
LEFT = {
    ("dflash.py", "dflash_generate", "CF603"),
    ("ddtree.py", "ddtree_generate", "CF603"),
    ("model/dflash.py", "spec_generate", "CF603"),
}


def function_at(path: Path, line: int | None) -> str:
    """The innermost function around a line."""
    assert line is not None
    around = [
        node
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno and node.lineno <= line <= node.end_lineno
    ]
    return max(around, key=lambda node: node.lineno).name


def test_every_loop_gets_every_fix(reference: Path) -> None:
    planned = plan(reference)
    found = Counter(
        (fix.location.path, function_at(reference / fix.location.path, fix.location.line), fix.code)
        for fix in planned.fixes
    )
    assert found == WANTED
    left = {
        (f.location.path, function_at(reference / f.location.path, f.location.line), f.code)
        for f in planned.unfixed
        if f.location
    }
    assert left == LEFT


def test_the_drafts_cache_stays_and_the_draft_is_passed_on(reference: Path) -> None:
    apply(plan(reference))
    for name in ("dflash.py", "ddtree.py", "model/dflash.py"):
        text = (reference / name).read_text()
        assert text.count("past_key_values_draft = DynamicCache()") == 1
        name = "self" if name == "model/dflash.py" else "model"
        assert re.search(rf"draft_hidden = draft_forward\(\s+{name},\s+target_hidden=", text)
        assert f"input_embeddings(target, {name})(block_ids)" in text
        assert re.search(rf"draft_logits\(target, draft_hidden\[.*\], {name}\)", text)


def test_patching_twice_changes_nothing_and_undo_restores(reference: Path) -> None:
    before = {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()}
    apply(plan(reference))
    again = plan(reference)
    assert again.empty and diff(again) == ""
    undo(reference)
    assert {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()} == before


def test_the_patched_tree_imports(reference: Path) -> None:
    apply(plan(reference))
    program = "import dflash, ddtree, model, compatfix_runtime; print(dflash.__file__)"
    environment = {"PYTHONPATH": str(reference), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=reference
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(reference / "dflash.py")
    for path in reference.rglob("*.py"):
        compile(path.read_bytes(), str(path), "exec")


def shape(path: Path) -> tuple[str, set[str]]:
    """The code of a file, and what it imports from the runtime, whatever the layout of that import."""
    parsed = ast.parse(path.read_bytes())
    imports = [n for n in parsed.body if isinstance(n, ast.ImportFrom) and n.module == "compatfix_runtime"]
    parsed.body = [statement for statement in parsed.body if statement not in imports]
    return ast.dump(parsed), {ast.dump(alias) for statement in imports for alias in statement.names}


def test_any_subset_compiles_and_completes(reference: Path) -> None:
    for codes in (["CF201"], ["CF203", "CF601"], ["CF102", "CF206"]):
        apply(plan(reference, select=codes))
        for path in reference.rglob("*.py"):
            compile(path.read_bytes(), str(path), "exec")
    apply(plan(reference))
    together = {path.name: shape(path) for path in reference.glob("*.py")}
    for _ in range(4):
        undo(reference)
    apply(plan(reference))
    at_once = {path.name: shape(path) for path in reference.glob("*.py")}
    assert together == at_once


def test_the_listing_names_every_fix(reference: Path) -> None:
    lines = render_plan(plan(reference))
    assert len([line for line in lines if "  ->  " in line]) == sum(WANTED.values())
    assert (
        "CF203 dflash.py:79:13  past_key_values_draft.crop(start)  ->  crop_to(past_key_values_draft, start)" in lines
    )
    assert lines[-1] == "39 fixes in 5 of 6 files, 3 places left"


def test_the_plausible_fix_verifies_nothing(reference: Path) -> None:
    planned = plausible_fix(reference)
    assert {fix.code for fix in planned.fixes} == {
        "CF101",
        "CF102",
        "CF103",
        "CF201",
        "CF203",
        "CF501",
        "CF601",
        "CF602",
    }
    text = "".join(path.read_text() for path in reference.rglob("*.py"))
    assert "verify(" not in text and "commit(" not in text
    assert "activate_past_recording" in text
