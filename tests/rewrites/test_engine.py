"""Bytes in, bytes out: what is outside the edited expressions stays, and one bad file does not end a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compatfix.errors import UsageError
from compatfix.rewrites import plan
from compatfix.rewrites.engine import rewrite
from compatfix.rewrites.rules import RULES

from .conftest import LOOP, PATCHED_LOOP, MakeTree

EVERY = {rule.code for rule in RULES}


def patched(data: bytes, path: str = "a.py") -> bytes:
    result = rewrite({path: data}, RULES, EVERY)
    return result.changes[0].after if result.changes else data


UNTOUCHED = {
    "nothing": b"",
    "comment": b"# only this\n",
    "unrelated": b"import torch\n\n\ndef f(x):\n    return torch.cat([x, x])\n",
    "patched": PATCHED_LOOP,
    "plain decoding": b"from transformers import DynamicCache\nkv = DynamicCache()\nout = m(x, past_key_values=kv)\n",
    "no newline at the end": b"x = 1",
}


@pytest.mark.parametrize("data", UNTOUCHED.values(), ids=UNTOUCHED)
def test_stays(data: bytes) -> None:
    assert patched(data) == data


FORMS = {
    "plain": (LOOP, PATCHED_LOOP),
    "bom": (b"\xef\xbb\xbf" + LOOP, b"\xef\xbb\xbf" + PATCHED_LOOP),
    "crlf": (LOOP.replace(b"\n", b"\r\n"), PATCHED_LOOP.replace(b"\n", b"\r\n")),
    "latin-1": (
        b"# -*- coding: latin-1 -*-\nname = '\xe9'\n" + LOOP,
        b"# -*- coding: latin-1 -*-\nname = '\xe9'\n" + PATCHED_LOOP,
    ),
    "utf-8 before an edit on the line": (
        LOOP.replace(b"cache.crop(3)", "s = 'é𝄞'; cache.crop(3)  # ünïcode".encode()),
        PATCHED_LOOP.replace(b"crop_to(cache, 3)", "s = 'é𝄞'; crop_to(cache, 3)  # ünïcode".encode()),
    ),
    "no newline at the end": (LOOP.rstrip(), PATCHED_LOOP.rstrip()),
    "tabs": (LOOP.replace(b"    ", b"\t"), PATCHED_LOOP.replace(b"    ", b"\t")),
    "form feed and odd blanks": (
        LOOP.replace(b"\n\n\ndef", b"\n\x0c\n   \ndef"),
        PATCHED_LOOP.replace(b"\n\n\ndef", b"\n\x0c\n   \ndef"),
    ),
}


@pytest.mark.parametrize(("before", "after"), FORMS.values(), ids=FORMS)
def test_keeps_the_form_of_the_file(before: bytes, after: bytes) -> None:
    assert patched(before) == after
    assert patched(after) == after


IMPORTS = {
    "behind the last import": (
        b"import a\nimport b\n\nf(1)\n",
        b"import a\nimport b\nfrom compatfix_runtime import {}\n\nf(1)\n",
    ),
    "behind the docstring": (b'"""Doc."""\n\nf(1)\n', b'"""Doc."""\n\nfrom compatfix_runtime import {}\n\nf(1)\n'),
    "behind __future__": (
        b"from __future__ import annotations\nf(1)\n",
        b"from __future__ import annotations\n\nfrom compatfix_runtime import {}\nf(1)\n",
    ),
    "under the licence": (
        b"#!/usr/bin/env python\n# Licence\nf(1)\n",
        b"#!/usr/bin/env python\n# Licence\nfrom compatfix_runtime import {}\nf(1)\n",
    ),
    "into the import that is there": (
        b"from compatfix_runtime import verify\nf(1)\n",
        b"from compatfix_runtime import {}, verify\nf(1)\n",
    ),
    "not below the first function": (
        b"import a\ndef g():\n    import b\nimport c\nf(1)\n",
        b"import a\nfrom compatfix_runtime import {}\ndef g():\n    import b\nimport c\nf(1)\n",
    ),
}


@pytest.mark.parametrize(("before", "after"), IMPORTS.values(), ids=IMPORTS)
def test_import_goes(before: bytes, after: bytes) -> None:
    use = b"m.set_attn_implementation('flash_attention_2')"
    fixed = b"m.set_attn_implementation(attention('flash_attention_2'))"
    wanted = after.replace(b"{}", b"attention").replace(b"f(1)", fixed)
    assert patched(before.replace(b"f(1)", use)) == wanted


def test_import_comes_before_its_first_use_at_the_top_level() -> None:
    source = b"import a\nk = load(attn_implementation='flash_attention_2')\nimport b\n"
    wanted = (
        b"import a\nfrom compatfix_runtime import attention\n"
        b"k = load(attn_implementation=attention('flash_attention_2'))\nimport b\n"
    )
    assert patched(source) == wanted


def test_a_name_of_the_file_is_left_to_it() -> None:
    source = LOOP.replace(b"output", b"verify")
    result = patched(source)
    assert b"verify as compatfix_verify" in result
    assert b"verify = compatfix_verify(target, ids" in result
    assert patched(result) == result


def test_import_is_relative_where_the_tree_is_a_package(tree: MakeTree, runtime: Path) -> None:
    root = tree({"__init__.py": b"", "loop.py": LOOP, "sub/__init__.py": b"", "sub/loop.py": LOOP})
    after = {change.path: change.after for change in plan(root, runtime=runtime).changes}
    assert b"from .compatfix_runtime import" in after["loop.py"]
    assert b"from ..compatfix_runtime import" in after["sub/loop.py"]


def test_import_is_absolute_in_packages_below_the_root(tree: MakeTree, runtime: Path) -> None:
    root = tree({"run.py": LOOP, "pkg/__init__.py": b"", "pkg/loop.py": LOOP})
    after = {change.path: change.after for change in plan(root, runtime=runtime).changes}
    assert after["pkg/loop.py"] == PATCHED_LOOP


def test_imports_that_are_still_used_stay() -> None:
    source = LOOP + b"\n\ndraft_cache = DynamicCache()\n"
    assert b"from transformers import DynamicCache\n" in patched(source)


def test_one_name_of_an_import_goes_and_the_others_stay() -> None:
    source = LOOP.replace(b"import DynamicCache", b"import AutoModel, DynamicCache  # both")
    assert b"from transformers import AutoModel  # both\n" in patched(source)


@pytest.mark.parametrize(
    "comment",
    [b"# compatfix: ignore[CF201]", b"# compatfix: ignore[bare-dynamic-cache, CF601]", b"# compatfix: ignore"],
)
def test_a_comment_switches_a_rule_off(comment: bytes) -> None:
    source = LOOP.replace(b"DynamicCache()", b"DynamicCache()  " + comment)
    result = patched(source)
    assert b"cache = DynamicCache()  " + comment in result
    assert b"crop_to(cache, 3)" in result


@pytest.mark.parametrize(
    "line", ["x = (  {}\n    cache.crop(2)\n)", "x = [\n    cache.crop(2),\n]  {}", "if cache.crop(2):  {}\n    pass"]
)
def test_the_comment_may_stand_on_the_statement(line: str) -> None:
    source = f"from transformers import DynamicCache\ncache = DynamicCache()\n{line}\n"
    assert b"crop_to" in patched(source.replace("{}", "# why").encode())
    kept = source.replace("{}", "# compatfix: ignore[CF203]").encode()
    assert patched(kept) == kept


def test_a_comment_for_another_rule_does_not() -> None:
    assert b"new_cache(target)" in patched(
        LOOP.replace(b"DynamicCache()", b"DynamicCache()  # compatfix: ignore[CF203]")
    )


BROKEN = {
    "syntax": b"def broken(:\n",
    "encoding": b"# -*- coding: utf-8 -*-\ns = '\xff'\n",
    "cookie": b"# -*- coding: no-such-codec -*-\n",
    "null": b"x = 1\0\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_reported_and_the_rest_is_done(tree: MakeTree, runtime: Path, data: bytes) -> None:
    root = tree({"broken.py": data, "loop.py": LOOP})
    result = plan(root, runtime=runtime)
    assert [(f.code, f.location.path) for f in result.unfixed if f.location] == [("CF908", "broken.py")]
    assert {c.path: c.after for c in result.changes}["loop.py"] == PATCHED_LOOP


def test_a_broken_file_with_a_trigger_is_reported_once() -> None:
    result = rewrite({"a.py": LOOP + b"def broken(:\n"}, RULES, EVERY)
    assert [f.code for f in result.unfixed] == ["CF908"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_reported(tree: MakeTree, runtime: Path) -> None:
    root = tree({"closed.py": b"", "loop.py": LOOP})
    (root / "closed.py").chmod(0)
    assert [f.code for f in plan(root, runtime=runtime).unfixed] == ["CF908"]


def test_what_is_not_the_users_code_is_not_looked_at(tree: MakeTree, runtime: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_bytes(LOOP)
    places = (".hidden/a.py", ".venv/a.py", "__pycache__/a.py", "compatfix_runtime/a.py", "site/a.py")
    root = tree({**dict.fromkeys(places, LOOP), "site/pyvenv.cfg": b"", "ok.py": b""})
    (root / "link.py").symlink_to(outside)
    (root / "linked").symlink_to(tmp_path / "runtime")
    result = plan(root, runtime=runtime)
    assert result.files_seen == 1
    assert result.empty


@pytest.mark.parametrize(
    "files", [{}, {"README.md": b""}, {"compatfix_runtime/__init__.py": b""}], ids=["none", "text", "copy"]
)
def test_no_python_file_is_an_error(tree: MakeTree, files: dict[str, bytes], tmp_path: Path) -> None:
    tree(files)
    with pytest.raises(UsageError, match="no "):
        plan(tmp_path / "tree")


def test_select_and_ignore(tree: MakeTree, runtime: Path) -> None:
    root = tree({"loop.py": LOOP})
    only = plan(root, select=["CF203"], runtime=runtime)
    assert [fix.code for fix in only.fixes] == ["CF203"]
    assert only.ignored == {"CF201": 1, "CF202": 1}
    named = plan(root, ignore=["absolute-crop"], runtime=runtime)
    assert [fix.code for fix in named.fixes] == ["CF201", "CF202"]
    with pytest.raises(UsageError, match="no rule CF990"):
        plan(root, select=["CF990"], runtime=runtime)


def test_each_fix_says_where_and_what(tree: MakeTree, runtime: Path) -> None:
    fixes = plan(tree({"loop.py": LOOP}), runtime=runtime).fixes
    assert [(f.code, str(f.location), f.before, f.after) for f in fixes] == [
        ("CF201", "loop.py:6:13", "DynamicCache()", "new_cache(target)"),
        (
            "CF202",
            "loop.py:7:14",
            "target(ids, past_key_values=cache, output_hidden_states=True)",
            "verify(target, ids, past_key_values=cache, output_hidden_states=True)",
        ),
        ("CF203", "loop.py:8:5", "cache.crop(3)", "crop_to(cache, 3)"),
    ]


def test_deep_expressions_are_no_obstacle() -> None:
    deep = b"total = " + b" + ".join([b"x"] * 1200) + b"\n" + b"y = z" + b".a()" * 400 + b"\n"
    assert patched(LOOP + deep) == PATCHED_LOOP + deep


def test_carriage_returns_alone_are_reported_and_left() -> None:
    result = rewrite({"a.py": LOOP.replace(b"\n", b"\r")}, RULES, EVERY)
    assert result.changes == []
    assert {finding.code for finding in result.unfixed} == {"CF908"}


def test_rules_and_pages_need_neither_libcst_nor_torch() -> None:
    program = (
        "import sys; from compatfix.rewrites import all_rules, page; all_rules(); page('CF203'); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"libcst", "torch", "transformers"} & set(loaded)


def test_an_expression_in_an_f_string_is_reported_and_the_rest_is_done() -> None:
    source = LOOP + b"\n\ncache = DynamicCache()\nprint(f'{cache.crop(2)} left')\n"
    result = rewrite({"a.py": source}, RULES, EVERY)
    assert b"crop_to(cache, 3)" in result.changes[0].after
    assert b"print(f'{cache.crop(2)} left')" in result.changes[0].after
    assert [(f.code, f.location.line) for f in result.unfixed if f.location] == [("CF203", 13)]


def test_an_import_that_another_file_takes_from_here_stays() -> None:
    files = {"loop.py": LOOP, "other.py": b"from loop import DynamicCache\nprint(DynamicCache)\n"}
    after = {change.path: change.after for change in rewrite(files, RULES, EVERY).changes}
    assert b"from transformers import DynamicCache\n" in after["loop.py"]


@pytest.mark.parametrize("indices", ["(0, 1)", "(i for i in best)", "[0, 1]", "(best)", "best[:n]"])
def test_arguments_in_parentheses(indices: str) -> None:
    source = (
        LOOP.decode() + "\n\ndef keep(kv, past, picked):\n    rows = past + torch.tensor(list(picked))\n"
        "    for layer in kv.layers:\n        layer.keys = layer.keys[:, :, rows]\n"
    ).replace("cache.crop(3)", f"keep(cache, 3, {indices})")
    after = patched(source.encode()).decode()
    wanted = indices.strip("()") if indices == "(best)" else indices
    assert f"    commit(cache, {wanted})\n" in after
