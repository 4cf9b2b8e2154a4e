"""inspect, validate and gate from the command line, on the example targets."""

import json
import subprocess
import sys

import pytest

from compatfix.model import Report
from compatfix.serial import from_plain

from .conftest import TARGETS, contents

HYBRID = ("--target", TARGETS / "qwen3.6-27b", "--draft", TARGETS / "qwen3.6-27b-dflash")
ATTENTION = ("--target", TARGETS / "qwen3-8b", "--draft", TARGETS / "qwen3-8b-dflash")


def newest(compatfix):
    reports = compatfix.directory / "reports"
    run = reports / (reports / "latest.txt").read_text().strip()
    return from_plain(Report, json.loads((run / "report.json").read_text())), (run / "report.md").read_text()


def verdicts(report):
    return {scope.scope: scope.status for scope in report.verdict.scopes}


def test_inspect_of_the_hybrid(compatfix):
    run = compatfix("inspect", TARGETS / "qwen3.6-27b", "--draft", TARGETS / "qwen3.6-27b-dflash")
    assert run.code == 0, run.err
    for words in (
        "AutoModelForCausalLM gives Qwen3_5ForCausalLM: 851 tensors, 26.9 billion parameters",
        "Qwen3_5ForConditionalGeneration (AutoModelForImageTextToText, config.architectures): 1184 tensors",
        "model.language_model.model.embed_tokens exists in no class",
        "48 linear, 16 full",
        "verification strategy: gated-delta tree",
        "65 entries for 64 layers",
        "21.8 GB",
        "CF204",
        "CF301",
        "next: compatfix gate TREE --target",
    ):
        assert words in " ".join(run.out.split()), words
    assert all(line == line.rstrip() for line in run.out.splitlines())
    assert list(compatfix.directory.iterdir()) == []


def test_inspect_fails_on_what_it_is_told_to(compatfix):
    target = TARGETS / "qwen3-8b"
    assert compatfix("inspect", target, "--draft", TARGETS / "qwen3-8b-dflash", "--fail-on", "error").code == 0
    misfit = compatfix(
        "inspect", target, "--draft", TARGETS / "qwen3.6-27b-dflash", "--fail-on", "error", "--format", "json"
    )
    assert misfit.code == 1
    codes = {finding["code"] for finding in json.loads(misfit.out)["findings"] if finding["level"] == "error"}
    assert codes >= {"CF401", "CF402", "CF404"}


def test_an_unpatched_tree_is_refused_at_once(compatfix, tree):
    before = contents(tree)
    run = compatfix("gate", tree, *HYBRID, "--", sys.executable, "-c", "open('started', 'w')")
    assert run.code == 1
    assert "CF905" in run.out
    assert f"compatfix patch {tree}" in run.out
    assert not (compatfix.directory / "started").exists()
    report, _ = newest(compatfix)
    assert verdicts(report)["code"] == "failed"
    assert contents(tree) == before


def test_a_patched_copy_of_the_reference_tree_passes_on_attention(compatfix, tree):
    before = contents(tree)
    run = compatfix("gate", tree, *ATTENTION, "--patch", "copy")
    assert run.code == 0, run.out + run.err
    assert contents(tree) == before
    report, markdown = newest(compatfix)
    assert verdicts(report) == {
        "code": "passed",
        "kernels": "unmeasured",
        "weights": "unmeasured",
        "draft": "unmeasured",
        "speed": "unmeasured",
    }
    ladder = report.sections["ladder"]
    assert ladder[0]["status"] == "raised"
    assert ladder[-1]["status"] == "lossless"
    assert "## Verdict by scope" in markdown
    assert "oracle draft" in markdown
    rows = {row["mode"]: row for row in report.sections["benchmark"]["rows"]}
    assert rows["plain"]["accepted_length"] == 1.0
    assert rows["chain"]["accepted_length"] > 2.5
    assert rows["tree-64"]["accepted_length"] > rows["chain"]["accepted_length"]


def test_leaving_the_rollback_rule_out_fails_and_says_where(compatfix, tree):
    run = compatfix("gate", tree, *HYBRID, "--patch", "copy", "--ignore", "absolute-crop", "--no-ladder")
    assert run.code == 1
    text = " ".join(run.out.split())
    for words in (
        "CF910 error dflash.py:",
        "prompt 0",
        "at token",
        "due",
        "margin",
        "raised by layer 0",
        "rules left out: CF203",
    ):
        assert words in text, words


def test_the_command_starts_when_green(compatfix, tree):
    assert compatfix("patch", tree).code == 0
    command = ("--", sys.executable, "-c", "open('started', 'w'); raise SystemExit(7)")
    run = compatfix("gate", tree, *ATTENTION, "--no-ladder", *command)
    assert run.code == 7, run.out + run.err
    started = compatfix.directory / "started"
    assert started.exists()
    judged = json.loads((tree / "compatfix_runtime" / "attest.json").read_text())["verdicts"]
    (entry,) = judged.values()
    assert entry["scopes"]["code"] == "passed"
    assert {run["target"]["class"] for run in entry["runs"]} == {"Qwen3ForCausalLM"}
    assert {run["draft"]["file"] for run in entry["runs"]} == {"model/dflash.py"}
    assert {run["target"]["config"]["hidden_size"] for run in entry["runs"]} == {4096}  # the real one's

    started.unlink()
    again = ("gate", tree, *ATTENTION, "--no-ladder", "--if-changed")
    run = compatfix(*again, *command)
    assert run.code == 7, run.out + run.err
    assert started.exists()
    assert "unchanged since" in run.out and "code passed" in run.out
    assert "greedy text" not in run.out

    module = next(tree.glob("*.py"))
    module.write_text(module.read_text() + "raise ImportError('changed')\n")
    run = compatfix(*again)
    assert run.code == 1
    assert "changed since" in run.out and f"{module.name} differs" in run.out
    assert json.loads((tree / "compatfix_runtime" / "attest.json").read_text())["verdicts"] == {}
    assert compatfix("undo", tree, "--force").code == 0
    assert not (tree / "compatfix_runtime").exists()


def test_a_command_cannot_follow_a_copy(compatfix, tree):
    run = compatfix("gate", tree, *ATTENTION, "--patch", "copy", "--", "true")
    assert run.code == 2
    assert run.err.startswith("error: a command would run TREE")


@pytest.mark.parametrize("bad", ["nowhere", "tree"])
def test_bad_targets_of_a_gate_are_one_line(compatfix, tree, bad):
    target = tree if bad == "tree" else bad
    run = compatfix("gate", tree, "--target", target)
    assert run.code == 2
    assert run.err.startswith("error: ") and run.err.count("\n") == 1
    assert list(compatfix.directory.iterdir()) == []


@pytest.mark.parametrize(
    ("draft", "words"),
    [((), "real weights need a draft"), (ATTENTION[2:], "neither .safetensors nor .bin files")],
)
def test_weights_that_are_not_there_are_told_at_once(compatfix, tree, draft, words):
    run = compatfix("gate", tree, *ATTENTION[:2], *draft, "--on", "weights", "--patch", "copy")
    assert run.code == 2
    assert words in run.err and run.err.count("\n") == 1
    assert list(compatfix.directory.iterdir()) == []


def test_the_tool_is_quiet_in_a_pipe(compatfix, tree):
    run = compatfix("gate", tree, *ATTENTION)
    assert run.err == ""
    assert "\x1b" not in run.out


def test_version():
    done = subprocess.run(
        [sys.executable, "-m", "compatfix.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("compatfix, version ") or done.stdout.split()[-1][0].isdigit()
