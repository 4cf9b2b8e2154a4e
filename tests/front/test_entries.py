"""A tree under names of its own, gated from the command line: entry points, arguments and results have to be named."""

import json
import re
import shlex
import shutil

import pytest
from jsonschema import Draft202012Validator

from .conftest import ROOT, TARGETS, contents
from .test_gate import newest, verdicts

TREE = ROOT / "tests" / "front" / "trees" / "renamed"
ATTENTION = ("--target", TARGETS / "qwen3-8b", "--draft", TARGETS / "qwen3-8b-dflash")
HYBRID = ("--target", TARGETS / "qwen3.6-27b", "--draft", TARGETS / "qwen3.6-27b-dflash")
RESULT = ("--result", "run.loop:straight=answer:new")
CHAIN = (
    *("--entry", "run.loop:straight", "--argument", "big=target", "--argument", "small=draft"),
    *("--argument", "ids=input_ids", "--argument", "room=max_new_tokens", "--argument", "halts=stop_token_ids"),
    *("--argument", "width=block_size", "--argument", "hole=mask_token_id", "--argument", "run.loop:straight.log=null"),
)
NAMED = (*CHAIN, "--entry", "tree=run.loop:branching", "--argument", "leaves=tree_budget")
# As little as can be passed, and less than that where the verdict is red anyway.
SMALL = ("--patch", "copy", "--no-ladder", "--tree-budget", "16", "--prompts", "8", "--max-new-tokens", "16")
SMALLER = (*SMALL[:-4], "--prompts", "2", "--max-new-tokens", "8")


@pytest.fixture
def renamed(tmp_path):
    """renamed(before, after) is a copy of the tree with that line changed."""

    def make(before="", after=""):
        copy = shutil.copytree(TREE, tmp_path / "renamed", ignore=shutil.ignore_patterns("__pycache__"))
        source = (copy / "run" / "loop.py").read_text()
        assert before in source
        (copy / "run" / "loop.py").write_text(source.replace(before, after) if before else source)
        return copy

    return make


def flat(run):
    return " ".join(run.out.split())


def tallies(report):
    return {
        tally["mode"]: (tally["same"], tally["run"], (tally["error"] or {}).get("type"))
        for tally in report.sections["losslessness"]["modes"]
        if tally["profile"] == "oracle"
    }


def test_a_right_tree_passes_once_it_is_patched_and_told(compatfix, renamed):
    tree = renamed()
    before = contents(tree)
    run = compatfix("gate", tree, *ATTENTION, *SMALL, *NAMED, *RESULT)
    assert run.code == 0, run.out + run.err
    assert contents(tree) == before
    report, _ = newest(compatfix)
    assert verdicts(report)["code"] == "passed"
    assert tallies(report) == {"chain": (8, 8, None), "tree-16": (8, 8, None)}
    chain, branching = report.sections["validation"]["entry_points"]
    assert chain["roles"]["target"] == "big" and chain["literals"] == {"log": None}
    assert (chain["entry"], chain["result"]) == ("run.loop:straight", {"field": "answer", "only_new": True})
    assert (branching["kind"], branching["roles"]["tree_budget"]) == ("tree", "leaves")
    assert "straight: named with --entry, big is target" in flat(run)
    schema = json.loads((ROOT / "docs" / "report-v1.schema.json").read_text())
    (written,) = (compatfix.directory / "reports").glob("*/report.json")
    assert [e.message for e in Draft202012Validator(schema).iter_errors(json.loads(written.read_text()))] == []


def test_a_rollback_that_the_patcher_cannot_see_fails(compatfix, renamed):
    tree = renamed("kv.crop(start)", 'getattr(kv, "crop")(start)')
    run = compatfix("gate", tree, *HYBRID, *SMALLER, *CHAIN, *RESULT)
    assert run.code == 1, run.out + run.err
    assert "CF910 error run/loop.py" in run.out
    assert "gate: red (scope code is failed" in run.out
    report, _ = newest(compatfix)
    assert verdicts(report)["code"] == "failed"


def test_a_commit_that_is_off_by_one_fails(compatfix, renamed):
    tree = renamed("right = 1 + int", "right = min(2, width) + int")
    run = compatfix("gate", tree, *ATTENTION, *SMALL, *CHAIN, *RESULT)
    assert run.code == 1, run.out + run.err
    assert "chain is not lossless (oracle): prompt 0" in flat(run)
    report, _ = newest(compatfix)
    assert verdicts(report)["code"] == "failed"
    assert tallies(report) == {"chain": (0, 6, None)}


def test_a_result_that_is_named_wrong_fails_its_mode_alone(compatfix, renamed):
    run = compatfix("gate", renamed(), *ATTENTION, *SMALLER, *NAMED, "--result", "run.loop:straight=anser:new")
    assert run.code == 1, run.out + run.err
    for words in (
        "CF917 error plain, chain, plain in bf16, chain in bf16: the result of run.loop:straight, dict, does not fit",
        "it has no 'anser'; did you mean answer?",
        "it holds answer: list of 8, log: list of",
        "such as --result run.loop:straight=answer:new",
    ):
        assert words in flat(run), words
    assert run.out.count("CF917 error") == 1
    report, _ = newest(compatfix)
    assert verdicts(report)["code"] == "failed"
    assert tallies(report) == {"chain": (0, 2, "CF917"), "tree-16": (2, 2, None)}


def test_without_options_the_error_says_which(compatfix, renamed):
    run = compatfix("gate", renamed(), *ATTENTION, *SMALLER)
    assert run.code == 1, run.out + run.err
    for words in (
        "CF907 error no generation function takes a draft, a target and input_ids",
        "name it: --entry run.loop:straight --argument big=ROLE --argument small=ROLE",
        "(ROLE: draft, target, input_ids, max_new_tokens, stop_token_ids, another role, or a JSON value)",
        "likewise --entry run.loop:branching",
    ):
        assert words in flat(run), words
    report, _ = newest(compatfix)
    assert verdicts(report)["code"] == "failed"


def test_the_readme_gives_these_options():
    readme = (ROOT / "README.md").read_text()
    command = re.search(r"^compatfix gate tests/front/trees/renamed .*?[^\\]\n", readme, re.DOTALL | re.MULTILINE)
    assert command is not None
    words = shlex.split(command[0].replace("\\\n", " "))
    assert ROOT / words[2] == TREE
    given = set(zip(words[3::2], words[4::2], strict=True))
    assert given >= set(zip((*NAMED, *RESULT)[::2], (*NAMED, *RESULT)[1::2], strict=True))
    assert {ROOT / value for option, value in given if option in ("--target", "--draft")} == set(ATTENTION[1::2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--result", "straight=answer"), "module:function="),
        (("--result", "answer", "--result", "text:new"), "--result answer says already"),
        (("--entry", "run.loop"), "write [chain=|tree=|loop=]module:function"),
        (("--argument", "big=taget"), "did you mean target?"),
    ],
)
def test_what_cannot_be_read_starts_nothing(compatfix, renamed, options, words):
    run = compatfix("gate", renamed(), *ATTENTION, *options)
    assert run.code == 2
    assert words in run.err and run.err.count("Error") + run.err.count("error") == 1
    assert list(compatfix.directory.iterdir()) == []


def test_a_diagnosis_runs_what_was_named(compatfix, renamed):
    pair = ROOT / "examples" / "pair"
    where = ("--target", pair / "target", "--draft", pair / "draft", "--patch", "copy")
    small = ("--only", "rollback", "--prompts", "6", "--max-new-tokens", "4")
    run = compatfix("diagnose", renamed(), *where, *small, *NAMED, *RESULT)
    assert run.code == 0, run.out + run.err
    report, _ = newest(compatfix)
    assert report.sections["diagnosis"]["modes"] == ["chain", "tree-8"]
