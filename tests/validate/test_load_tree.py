"""A tree is imported as its own scripts would: from its own files, with stubs for what is missing and not needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compatfix.validate.load_tree import TreeError, load_tree
from compatfix.validate.tree_source import loader_class, parse_tree

pytestmark = pytest.mark.usefixtures("clean_modules")
VENDOR = Path(__file__).resolve().parents[2] / "vendor" / "ddtree_ref"


def test_entries_of_the_reference_tree_are_found_by_signature():
    tree = load_tree(VENDOR)
    assert (tree.chain.module, tree.chain.name) == ("dflash", "dflash_generate")
    assert (tree.tree.module, tree.tree.name, tree.tree.budget) == ("ddtree", "ddtree_generate", "tree_budget")
    assert tree.draft_class.__name__ == "DFlashDraftModel"
    assert (tree.loop.name, tree.loop.method) == ("DFlashDraftModel.spec_generate", True)
    assert tree.loader == "AutoModelForCausalLM"
    assert tree.loader_place.startswith("benchmark.py:")


def test_the_entry_point_that_the_scripts_import_is_run_and_others_are_named(variant):
    root = variant()
    (root / "another.py").write_text((root / "speculate.py").read_text())
    assert load_tree(root).not_judged == ("speculate.chain_generate", "speculate.tree_generate")
    names = "chain_generate, tree_generate"
    script = f"from speculate import {names}\nif __name__ == '__main__':\n    print({names})\n"
    (root / "run.py").write_text(script)
    tree = load_tree(root)
    assert (tree.chain.module, tree.tree.module) == ("speculate", "speculate")
    assert tree.not_judged == ("another.chain_generate", "another.tree_generate")
    assert load_tree(VENDOR).not_judged == ()


def test_a_missing_module_is_stubbed_and_the_stub_is_taken_away(variant):
    tree = load_tree(variant())
    assert tree.stubbed == ("telemetry",)
    assert "telemetry" not in sys.modules
    assert callable(sys.modules["draft"].empty_cache)


def test_an_installed_package_of_the_same_name_is_not_taken(variant, tmp_path, monkeypatch):
    elsewhere = tmp_path / "site"
    elsewhere.mkdir()
    (elsewhere / "draft.py").write_text("raise RuntimeError('the wrong one')\n")
    (elsewhere / "speculate.py").write_text("chain_generate = None\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    import speculate

    assert Path(speculate.__file__).parent == elsewhere
    root = variant()
    tree = load_tree(root)
    assert all(Path(m.__file__).is_relative_to(root) for m in tree.modules)


def test_a_module_that_comes_from_elsewhere_is_reported(variant, tmp_path):
    root, elsewhere = variant(), tmp_path / "other"
    elsewhere.mkdir()
    (root / "draft.py").rename(elsewhere / "draft.py")
    (root / "draft").mkdir()
    (root / "draft" / "README").touch()
    source = (root / "speculate.py").read_text()
    (root / "speculate.py").write_text(f"import sys\nsys.path.insert(0, {str(elsewhere)!r})\n" + source)
    (root / "draft" / "extra.py").write_text("x = 1\n")
    with pytest.raises(TreeError) as caught:
        load_tree(root)
    assert caught.value.code == "CF914"


def test_a_tree_that_does_not_import_says_where(variant):
    root = variant()
    source = (root / "draft.py").read_text()
    (root / "draft.py").write_text(source + "\nraise ValueError('half a draft')\n")
    with pytest.raises(TreeError) as caught:
        load_tree(root)
    assert caught.value.code == "CF906"
    assert "half a draft" in str(caught.value)
    assert caught.value.detail["place"]["file"] == "draft.py"


def test_a_directory_without_generation_code_is_refused(tmp_path):
    (tmp_path / "hello.py").write_text("print('hello')\n")
    with pytest.raises(TreeError) as caught:
        load_tree(tmp_path)
    assert caught.value.code == "CF907"


def test_a_file_that_does_not_parse_does_not_end_the_rest(variant):
    root = variant()
    (root / "notes.py").write_text("def broken(:\n")
    tree = load_tree(root)
    assert list(tree.broken) == ["notes.py"]
    assert tree.chain is not None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("target = AutoModelForImageTextToText.from_pretrained(p)", "AutoModelForImageTextToText"),
        ("draft = AutoModel.from_pretrained(p)\ntarget = Qwen3ForCausalLM.from_pretrained(p)", "Qwen3ForCausalLM"),
        ("tok = AutoTokenizer.from_pretrained(p)", None),
        ("self.target = transformers.AutoModelForCausalLM.from_pretrained(p).to(d)", "AutoModelForCausalLM"),
        ("def f():\n    return AutoModelForCausalLM.from_pretrained(p)", "AutoModelForCausalLM"),
    ],
)
def test_the_class_that_loads_the_target_is_read_from_the_source(tmp_path, source, name):
    (tmp_path / "script.py").write_text(source + "\n")
    found = loader_class(parse_tree(tmp_path)[0])
    assert (found and found[0]) == name
