"""The action, the hook and the snippets for pipelines: what they call exists, and their steps do what they say."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compatfix.cli import main

from .conftest import ROOT, TARGETS

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
PAGE = (ROOT / "docs" / "pipelines.md").read_text()
STEPS = {step.get("name") or step["uses"]: step for step in ACTION["runs"]["steps"]}
# The command as installed for this interpreter.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def options(command):
    return {option for parameter in main.commands[command].params for option in parameter.opts}


def run(script, environment, directory):
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env={**os.environ, "PATH": PATH, **environment},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def step(tmp_path, pending):
    """Runs the action's gate step on a tree with a fix pending, as a workflow would."""

    def gate(**inputs):
        given = {name: spec.get("default", "") for name, spec in ACTION["inputs"].items()}
        given |= {"tree": str(pending), "target": str(TARGETS / "qwen3-8b")}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        environment = {}
        for name, value in STEPS["Gate"]["env"].items():
            value = value.replace("${{ runner.temp }}", str(tmp_path))
            environment[name] = re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: given[found[1]], value)
        outputs, summary = tmp_path / "output", tmp_path / "summary"
        outputs.write_text("")
        environment |= {"GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_ACTIONS": "true"}
        done = run(STEPS["Gate"]["run"], environment, tmp_path)
        return done, outputs.read_text(), summary.read_text() if summary.exists() else ""

    return gate


def test_every_input_is_used_and_every_option_exists():
    text = (ROOT / "action.yml").read_text()
    used = set(re.findall(r"inputs\.([a-z-]+)", text))
    assert used == set(ACTION["inputs"])
    assert set(re.findall(r" (--[a-z-]+)", STEPS["Gate"]["run"])) <= options("gate")
    assert {name for name, spec in ACTION["inputs"].items() if spec.get("required")} == {"tree", "target"}
    assert ACTION["outputs"]["report"]["value"] == "${{ steps.gate.outputs.report }}"


def test_the_versions_are_those_that_are_tested():
    pinned = dict(line.split("==") for line in (ROOT / "constraints" / "dev.txt").read_text().split())
    assert ACTION["inputs"]["torch"]["default"] == pinned["torch"]
    assert ACTION["inputs"]["transformers"]["default"] == pinned["transformers"]


def test_inputs_reach_scripts_as_variables_only():
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        if "run" in step:
            assert step["shell"] == "bash"
            assert subprocess.run(["bash", "-n", "-c", step["run"]], check=False).returncode == 0


def test_the_step_fails_on_a_tree_with_fixes_pending_and_leaves_its_report(step, tmp_path):
    done, outputs, summary = step()
    assert done.returncode == 1, done.stderr
    assert "gate: red (scope code is failed, 1 error)" in done.stdout
    assert "::error title=CF905 error::" in done.stdout
    directory = Path(re.fullmatch(r"report=(.*)\n", outputs)[1])
    assert directory.parent == tmp_path / "compatfix"
    assert json.loads((directory / "report.json").read_text())["required"] == ["code"]
    assert "## Verdict by scope" in summary


def test_the_step_hands_every_input_over(step):
    done, outputs, _ = step(
        draft=str(TARGETS / "qwen3-8b-dflash"),
        patch="copy",
        require="code,weights",
        arguments="--seed 3  --no-ladder",
    )
    assert done.returncode == 2
    assert done.stderr == "error: scope weights cannot pass with --on tiny: use --on weights\n"
    assert outputs == ""
    done, _, _ = step(baseline="no such file.json")
    assert done.returncode == 2 and "cannot read the baseline no such file.json" in done.stderr
    done, _, _ = step(fail_on="never")
    assert done.returncode == 2 and "--fail-on" in done.stderr


def test_the_hook_fails_until_the_tree_is_patched(compatfix, pending):
    (hook,) = HOOKS
    command = [*shlex.split(hook["entry"]), *hook["args"]]
    assert hook["pass_filenames"] is False

    def run_hook():
        return run(shlex.join(command), {"COMPATFIX_STATE_DIR": str(pending.parent / "state")}, pending)

    before = run_hook()
    assert before.returncode == 1 and "nothing was written" in before.stdout
    assert compatfix("patch", pending).code == 0
    assert run_hook().returncode == 0


def test_commands_on_the_page_have_options_that_exist():
    lines = [line for block in re.findall(r"```\w*\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    called = [re.search(r"compatfix (gate|validate|patch|report \w+)\b(.*)", line) for line in lines]
    found = [match for match in called if match]
    assert len(found) >= 5
    for match in found:
        name, rest = match[1], match[2].split(" -- ")[0]
        parent, _, child = name.partition(" ")
        command = main.commands[parent].commands[child] if child else main.commands[parent]
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", rest)) <= known, match[0]


def test_snippets_are_yaml():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    workflow, gitlab, hook = map(yaml.safe_load, blocks)
    action = next(s for s in workflow["jobs"]["gate"]["steps"] if "compatfix" in s["uses"])
    assert set(action["with"]) <= set(ACTION["inputs"])
    assert set(gitlab["compatfix"]["artifacts"]["reports"]) == {"junit", "codequality"}
    assert [h["id"] for h in hook["repos"][0]["hooks"]] == [HOOKS[0]["id"]]


def test_the_gitlab_job_keeps_its_reports_whatever_the_verdict_is(pending, tmp_path):
    gitlab = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])["compatfix"]
    script = "\n".join(line for line in gitlab["script"] if "pip install" not in line)
    script = script.replace("vendor/ddtree", str(pending)).replace("models/target", str(TARGETS / "qwen3-8b"))
    script = script.replace(" --draft models/draft", "").replace(" --patch copy", "")
    done = run(script, {}, tmp_path)
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "junit.xml").is_file() and (tmp_path / "codequality.json").is_file()
