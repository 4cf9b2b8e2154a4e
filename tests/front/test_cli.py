"""The commands: what they print, what they write, how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compatfix.codes import CODES
from compatfix.repros import available

from .conftest import ROOT, TARGETS, contents


def imports(*args):
    """Modules that a command has imported when it ends."""
    code = f"""
import sys
from compatfix.cli import main
try:
    main({list(args)!r})
except SystemExit:
    pass
print("MODULES", *sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split("MODULES")[1].split())


@pytest.mark.parametrize(
    "args", [("--help",), ("rules",), ("explain", "CF203"), ("gate", "--help"), ("doctor", "--help")], ids=" ".join
)
def test_the_front_starts_without_heavy_imports(args):
    assert not imports(*args) & {"torch", "transformers", "numpy", "libcst"}


def test_help_imports_nothing_that_it_does_not_need():
    assert not imports("--help") & {"rich", "cattrs", "compatfix.codes", "compatfix.process", "compatfix.rewrites"}


def test_help_names_every_command(compatfix):
    run = compatfix("--help")
    assert run.code == 0
    for command in ("inspect", "patch", "undo", "rules", "explain", "repro", "validate", "gate", "doctor"):
        assert f"\n  {command} " in run.out


def test_it_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "compatfix", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("compatfix, version ")


def test_rules_lists_every_code(compatfix):
    run = compatfix("rules")
    assert run.code == 0
    assert [line.split()[0] for line in run.out.splitlines()] == list(CODES)
    assert "CF203  absolute-crop                     error    fix  repro  " in run.out
    listed = json.loads(compatfix("rules", "--format", "json").out)
    assert {entry["code"] for entry in listed if entry["repro"]} == set(available())
    assert {entry["code"] for entry in listed if entry["rewritten"]} >= {"CF101", "CF201", "CF202", "CF203", "CF206"}


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page(code):
    from compatfix.rewrites import page

    text = page(code)
    assert text.startswith(f"# {code} {CODES[code].name}\n")
    assert text.count("\n## ") >= 3


@pytest.mark.parametrize("name", ["CF203", "cf203", "203", "absolute-crop"])
def test_explain_takes_numbers_and_names(compatfix, name):
    assert compatfix("explain", name).out.startswith("# CF203 absolute-crop\n")


def test_explain_of_an_unknown_code_is_one_line(compatfix):
    run = compatfix("explain", "CF999")
    told = "give a code (compatfix rules lists them), a file with a traceback, or - for standard input"
    assert (run.code, run.out, run.err) == (2, "", f"error: no code, name or file CF999: {told}\n")


# -- patch and undo


def test_patch_changes_undo_restores(compatfix, tree):
    before = contents(tree)
    run = compatfix("patch", tree)
    assert run.code == 0, run.out + run.err
    assert (
        "CF203 dflash.py:102:9  past_key_values_target.crop(start)  ->  crop_to(past_key_values_target, start)"
        in run.out
    )
    assert "code is changed, not yet proven" in run.out
    assert f"compatfix gate {tree}" in run.out
    after = contents(tree)
    assert "compatfix_runtime/__init__.py" in after
    assert after["dflash.py"] != before["dflash.py"]
    assert b"crop_to(past_key_values_target, start)" in after["dflash.py"]

    again = compatfix("patch", tree)
    assert (again.code, contents(tree)) == (0, after)
    assert "nothing to change" in again.out

    undone = compatfix("undo", tree)
    assert undone.code == 0
    assert "restored dflash.py" in undone.out
    assert "files that the patch had added" in undone.out
    assert contents(tree) == before
    nothing = compatfix("undo", tree)
    assert (nothing.code, nothing.err) == (2, f"error: nothing to undo in {tree}\n")


def test_check_and_diff_write_nothing(compatfix, tree):
    before = contents(tree)
    check = compatfix("patch", tree, "--check")
    assert check.code == 1
    assert "nothing was written" in check.out
    diff = compatfix("patch", tree, "--diff")
    assert diff.code == 0
    assert "+        crop_to(past_key_values_target, start)" in diff.out
    assert contents(tree) == before
    applied = subprocess.run(["git", "apply", "--check", "-"], input=diff.out, text=True, cwd=tree, check=False)
    assert applied.returncode == 0


def test_check_of_a_patched_tree_is_green(compatfix, tree):
    compatfix("patch", tree)
    assert compatfix("patch", tree, "--check").code == 0


def test_select_and_ignore(compatfix, tree):
    run = compatfix("patch", tree, "--check", "--select", "absolute-crop,CF601", "--format", "json")
    plan = json.loads(run.out)
    assert {fix["code"] for change in plan["changes"] for fix in change["fixes"]} == {"CF203", "CF601"}
    run = compatfix("patch", tree, "--check", "--ignore", "CF2", "--format", "json")
    codes = {fix["code"] for change in json.loads(run.out)["changes"] for fix in change["fixes"]}
    assert codes == {"CF101", "CF102", "CF103", "CF408", "CF501", "CF601", "CF602", "CF701"}
    assert compatfix("patch", tree, "--select", "nonsense").code == 2


def test_uncommitted_changes_are_refused(compatfix, tree):
    def git(*args):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=tree, check=True, capture_output=True
        )

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "start")
    (tree / "dflash.py").write_bytes((tree / "dflash.py").read_bytes() + b"# mine\n")
    before = contents(tree)
    run = compatfix("patch", tree)
    assert run.code == 2
    assert run.err.startswith("error: uncommitted changes in dflash.py")
    assert contents(tree) == before
    assert compatfix("patch", tree, "--allow-dirty").code == 0
    # The tool's own output is no reason to refuse.
    assert compatfix("patch", tree).code == 0


# -- bad input: one clear line, exit 2, nothing written


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "no config.json in model (is this a model directory?)"),
        ("{", "is not valid JSON"),
        ("[]", "holds a list where a model's config is an object"),
        ('{"hidden_size": 8}', "has no model_type"),
        ('{"model_type": "nonesuch"}', "nonesuch"),
        ('{"model_type": "nonesuch", "auto_map": {"AutoModelForCausalLM": "x.Y"}}', "nonesuch"),
    ],
)
def test_bad_targets(compatfix, config, words):
    directory = compatfix.directory / "model"
    directory.mkdir()
    if config is not None:
        (directory / "config.json").write_text(config)
    run = compatfix("inspect", "model")
    assert run.code == 2
    assert run.err.startswith("error: ")
    assert words in run.err
    assert run.err.count("\n") == 1
    assert run.out == ""


def test_a_missing_directory(compatfix):
    run = compatfix("inspect", "nowhere")
    assert run.code == 2
    assert run.err == "error: nowhere does not exist (a model directory with a config.json is needed)\n"


def test_a_target_that_is_a_draft(compatfix):
    run = compatfix("inspect", TARGETS / "qwen3-8b-dflash")
    assert run.code == 2
    assert "holds a DFlash draft" in run.err


def test_trees_that_are_none(compatfix):
    (compatfix.directory / "empty").mkdir()
    assert compatfix("patch", "nowhere").err == "error: nowhere does not exist\n"
    (compatfix.directory / "file.py").write_text("")
    assert "give the directory" in compatfix("patch", "file.py").err
    assert compatfix("patch", "empty").code == 2


def test_a_syntax_error_is_a_finding_and_the_rest_is_done(compatfix, tree):
    (tree / "broken.py").write_text("def (:\n")
    run = compatfix("patch", tree)
    assert run.code == 1
    assert "CF908 broken.py:1" in run.out
    assert b"crop_to" in (tree / "dflash.py").read_bytes()


def test_a_tree_with_a_syntax_error_is_not_run_by_the_gate(compatfix, tree):
    (tree / "broken.py").write_text("def (:\n")
    (tree / "uses.py").write_text("import broken\n")
    run = compatfix("gate", tree, "--target", TARGETS / "qwen3-8b", "--patch", "copy")
    assert run.code == 1
    assert "CF908 error broken.py:1" in run.out
    assert "gate: red (scope code is failed, 1 error)" in run.out


def test_a_broken_file_that_nothing_imports_is_a_warning(tree):
    from compatfix.gating import _weighed
    from compatfix.model import Finding, Location

    finding = Finding("CF908", "error", "read", "invalid syntax", Location("old.py", 1))
    assert _weighed(tree, finding).level == "warning"
    (tree / "uses.py").write_text("from old import thing\n")
    assert _weighed(tree, finding).level == "error"


@pytest.mark.parametrize("edit", ["changed", "added"])
def test_an_edited_runtime_is_an_error(compatfix, tree, edit):
    compatfix("patch", tree)
    runtime = tree / "compatfix_runtime"
    if edit == "added":
        (runtime / "extra.py").write_text("")
    else:
        file = runtime / "verification.py"
        file.write_bytes(file.read_bytes() + b"# mine\n")
    run = compatfix("patch", tree, "--check", "--format", "json")
    assert run.code == 1
    assert [(f["code"], f["level"]) for f in json.loads(run.out)["unfixed"] if f["level"] != "note"] == [
        ("CF915", "error")
    ]
    if edit == "changed":
        assert compatfix("patch", tree, "--force-runtime").code == 0
        assert compatfix("patch", tree, "--check").code == 0


def test_a_validation_knows_an_edited_runtime(compatfix, tree):
    from compatfix.gating import _edited_runtime

    assert _edited_runtime(tree) == ()
    compatfix("patch", tree)
    assert _edited_runtime(tree) == ()
    file = tree / "compatfix_runtime" / "verification.py"
    file.write_bytes(file.read_bytes() + b"# mine\n")
    assert [(finding.code, finding.level) for finding in _edited_runtime(tree)] == [("CF915", "error")]


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
@pytest.mark.parametrize("option", ["--time-limit", "--memory-limit"])
def test_limits_are_numbers_above_zero(compatfix, option, value):
    run = compatfix("inspect", TARGETS / "qwen3-8b", option, value)
    assert run.code == 2
    assert "a limit is a number above 0" in run.err


def test_a_report_directory_that_cannot_be_is_told_at_once(compatfix, tree):
    (compatfix.directory / "file").write_text("")
    run = compatfix("gate", tree, "--target", TARGETS / "qwen3-8b", "--report-dir", "file/reports")
    assert (run.code, run.err) == (2, "error: cannot write reports under file/reports: Not a directory\n")


def test_a_terminal_without_the_characters_loses_nothing(compatfix, tree, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    run = compatfix("gate", tree, "--target", TARGETS / "qwen3-8b")
    assert run.code == 1
    assert "CF905" in run.out


def test_a_journal_that_cannot_be_written_is_one_line(compatfix, tree, monkeypatch):
    (compatfix.directory / "file").write_text("")
    monkeypatch.setenv("COMPATFIX_STATE_DIR", str(compatfix.directory / "file" / "state"))
    before = contents(tree)
    run = compatfix("patch", tree)
    assert run.code == 2
    assert run.err.startswith("error: cannot write the undo journal at ")
    assert contents(tree) == before


def test_a_file_name_that_is_not_utf8(compatfix, tree):
    with open(os.fsencode(tree) + b"/na\xefve.py", "wb") as file:
        file.write(b"x = 1\n")
    assert compatfix("patch", tree, "--check").code == 1


@pytest.mark.parametrize("scope", ["weights", "kernels", "speed"])
def test_a_scope_that_cannot_pass_is_refused_at_once(compatfix, tree, scope):
    run = compatfix("gate", tree, "--target", TARGETS / "qwen3-8b", "--patch", "copy", "--require", f"code,{scope}")
    assert run.code == 2
    assert run.err.startswith(f"error: scope {scope} cannot pass with --on tiny")


def test_an_inspection_without_an_answer_is_exit_2(compatfix):
    run = compatfix("inspect", TARGETS / "qwen3-8b", "--memory-limit", "0.3")
    assert run.code == 2
    assert "CF012 error" in run.out
    assert "last step:" in run.out


def test_usage_errors_are_exit_2(compatfix):
    for args in (["gate"], ["inspect"], ["gate", "x", "--target", "y", "--tree-budget", "0"], ["nonsense"]):
        assert compatfix(*args).code == 2, args


def test_a_path_cannot_forge_a_workflow_command(compatfix):
    run = compatfix("gate", "/nowhere\n::error::forged", "--target", TARGETS / "qwen3-8b", "--format", "github")
    assert (run.code, run.err) == (2, "error: /nowhere ::error::forged does not exist\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("inspect", "model.gguf"), "model.gguf: GGUF is not read; give the directory of the transformers checkpoint"),
        (("patch", "https://example.org/ddtree"), "is an address; clone the repository first and give its directory"),
        (("gate", "tree", "--target", "m", "--argument", f"a={'[' * 5000}"), "nested too deeply"),
        (("gate", "tree", "--target", "m", "--argument", f"a=x{'9' * 6000}"), "is neither a role"),
    ],
)
def test_input_of_another_kind_is_told_in_a_line(compatfix, args, words):
    run = compatfix(*args)
    assert run.code == 2
    assert words in run.err
    assert max(map(len, run.err.splitlines())) < 500


def test_reports_that_cannot_be_written_are_told_before_anything_runs(compatfix):
    if not Path("/proc/self").exists():
        pytest.skip("no file system here that refuses root")
    where = ("--target", TARGETS / "qwen3-8b", "--report-dir", "/proc/reports")
    run = compatfix("gate", ROOT / "vendor" / "ddtree_ref", *where)
    assert run.code == 2
    assert run.err.startswith("error: cannot write reports under /proc/reports: ")


def test_a_run_too_small_to_pass_is_told_before_it_starts(compatfix, tree):
    run = compatfix("gate", tree, "--target", TARGETS / "qwen3-8b", "--prompts", "6")
    assert run.err.splitlines()[0] == (
        "this run cannot pass scope code: at least 8 prompts, and 16 tokens of each, are needed"
    )
