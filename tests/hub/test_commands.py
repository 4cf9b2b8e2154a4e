"""Hub ids on the command line, in its reports, and in the answers of --if-changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from compatfix.attest.state import tree_state
from compatfix.errors import UsageError
from compatfix.gating import check_input
from compatfix.hub.place import ModelPlace, Places
from compatfix.model import SCOPES, Finding, Report, ScopeVerdict, Verdict
from compatfix.unchanged import open_ledger
from compatfix.validate.options import ValidationOptions

from ..front.conftest import TARGETS
from .conftest import PICKLES, SHARDS
from .server import Answer


@pytest.fixture
def compatfix(hub, tmp_path):
    """Runs `compatfix ARGS` as somebody whose hub is that of the test."""
    (tmp_path / "work").mkdir()
    home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "COMPATFIX_STATE_DIR": str(tmp_path / "state")}

    def run(*args, **variables):
        command = [sys.executable, "-m", "compatfix.cli", *map(str, args)]
        environment = {**os.environ, **home, **variables}
        where = tmp_path / "work"
        return subprocess.run(command, cwd=where, capture_output=True, text=True, env=environment, check=False)

    return run


def config_of(name):
    return (TARGETS / name / "config.json").read_bytes()


def test_inspect_of_a_pair_on_the_hub(hub, compatfix):
    target = {**SHARDS, "config.json": config_of("qwen3-8b"), "modeling_own.py": b"raise SystemExit\n"}
    commit = hub.repository("org/target", target).revisions["main"]
    hub.repository("org/draft", {**PICKLES, "config.json": config_of("qwen3-8b-dflash")})
    run = compatfix("inspect", "org/target", "--draft", "org/draft@main", "--format", "json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["subject"]["target"] == "org/target"
    assert report["subject"]["target commit"] == commit
    assert report["subject"]["draft"] == "org/draft@main"
    told = {line["key"]: line["text"] for line in report["statements"] if line["topic"] == "hub"}
    assert told["target"] == f"target org/target at main is commit {commit} of {hub.url}"
    assert told["target weights"] == "weights of the target (2 kB in 2 files) were not fetched, only their headers"
    assert told["target code"] == "code of the target, neither fetched nor run: modeling_own.py"
    assert told["draft weights"] == (
        "weights of the draft (1 kB in 1 file) were not fetched; of pickles only names and sizes are known"
    )
    assert told["draft pickles"] == "pickles of the draft, named and never fetched: pytorch_model.bin"
    assert report["sections"]["inspection"]["checkpoint"]["tensors"] == 3
    assert report["next_step"].startswith("compatfix gate TREE --target org/target --draft org/draft@main")
    assert hub.asked(".py") == hub.asked(".bin") == []


@pytest.mark.parametrize(
    ("command", "words"),
    {
        ("inspect", "org/nothing"): "has no org/nothing",
        ("inspect", "org/gated"): "org/gated is gated",
        ("gate", ".", "--target", "org/single", "--draft", "org/single", "--on", "weights"): "hf download org/single",
        ("diagnose", ".", "--target", "org/single", "--draft", "org/single"): "hf download org/single",
        ("validate", ".", "--target", "org/single@"): "the revision after @ is empty",
    }.items(),
)
def test_one_line_and_exit_2(hub, compatfix, command, words):
    hub.answers["/api/models/org/gated"] = Answer(403, {"X-Error-Code": "GatedRepo"})
    run = compatfix(*command)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: ")
    assert words in run.stderr
    assert run.stderr.count("\n") == 1


def test_doctor_of_a_target_on_the_hub(hub, compatfix):
    commit = hub.repository("org/target", {**SHARDS, "config.json": config_of("qwen3-8b")}).revisions["main"]
    run = compatfix("doctor", "--target", "org/target", "--format", "json")
    report = json.loads(run.stdout)
    assert (report["subject"]["target"], report["subject"]["target commit"]) == ("org/target", commit)
    assert report["sections"]["doctor"]["observed"]["class_name"] == "Qwen3ForCausalLM"
    assert report["next_step"] == "compatfix gate TREE --target org/target --patch copy"


def test_offline_is_the_librarys_own_variable(hub, compatfix):
    run = compatfix("inspect", "org/single", HF_HUB_OFFLINE="1")
    assert (run.returncode, hub.log) == (2, [])
    assert "is not in the cache while HF_HUB_OFFLINE is set" in run.stderr


def test_errors_speak_of_the_id_and_not_of_the_copy(hub, compatfix):
    hub.repository("org/broken", {"config.json": b"{"})
    run = compatfix("inspect", "org/broken")
    assert run.stderr.startswith("error: org/broken/config.json is not valid JSON")


def test_without_a_hub_id_the_library_is_not_imported(tmp_path):
    (tmp_path / "model").mkdir()
    code = """if True:
        import sys
        from compatfix import api, cli
        for call in (lambda: api.inspect("model"), lambda: cli.main(["--help"])):
            try:
                call()
            except (Exception, SystemExit):
                pass
        assert not [name for name in sys.modules if name.startswith(("huggingface_hub", "httpx", "requests"))]
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_directory_of_headers_is_never_taken_for_weights(hub, user):
    place = user("org/shards")
    with pytest.raises(UsageError, match="only their headers were fetched from the hub"):
        check_input(place.path, place.path, "weights")


def test_findings_speak_of_the_id(hub, user):
    place = user("org/single")
    finding = Finding("CF409", "error", "read", f"{place.path} is no DFlash draft")
    report = Places(ModelPlace("here", "here"), place).named(Report("inspect", {"target": "here"}, findings=(finding,)))
    assert report.findings == (replace(finding, message="org/single is no DFlash draft"),)
    assert report.subject == {"target": "here", "draft": "org/single", "draft commit": place.origin.commit}


class Judged:
    """A tree that was judged green against a model of the hub, and the question whether it still is."""

    def __init__(self, user, base):
        self.user, self.base = user, base
        (base / "tree").mkdir()
        (base / "tree" / "loop.py").write_text("x = 1\n")

    def ledger(self, given, offline=False):
        place = self.user(given, offline=offline)
        return open_ledger("gate", self.base / "tree", Places(place), self.base / "reports", ValidationOptions(), {})

    def run(self, given):
        ledger = self.ledger(given)
        ledger.begin()
        time.sleep(0.02)
        ledger.used.tree = tree_state(self.base / "tree")
        place = self.base / "reports" / "run"
        place.mkdir(parents=True)
        scopes = tuple(ScopeVerdict(s, "passed" if s == "code" else "unmeasured", "") for s in SCOPES)
        report = Report("gate", {}, verdict=Verdict(scopes), started="2026-12-01", required=("code",))
        assert ledger.keep(report, place) is None

    def answer(self, given, **options):
        return self.ledger(given, **options).answer()


@pytest.fixture
def judged(user, tmp_path):
    return Judged(user, tmp_path)


def test_unchanged_while_the_revision_is_the_same_commit(hub, judged):
    judged.run("org/shards")
    assert judged.answer("org/shards").green
    assert judged.answer("org/shards", offline=True).green


def test_offline_mode_by_itself_changes_nothing(hub, judged, monkeypatch):
    judged.run("org/shards")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert judged.answer("org/shards", offline=True).green
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert "environment variable HF_HUB_OFFLINE differs" in judged.answer("org/shards").line


def test_another_commit_is_never_unchanged(hub, judged):
    judged.run("org/shards")
    # The files are the same ones; what is told apart is the commit.
    hub.repositories["org/shards"].push({**SHARDS, "README.md": b"more"})
    answer = judged.answer("org/shards")
    assert not answer.green
    assert "target: commit differs" in answer.line


def test_a_commit_by_its_name_stays_what_it_is(hub, judged):
    commit = hub.repositories["org/shards"].revisions["main"]
    judged.run(f"org/shards@{commit}")
    hub.repositories["org/shards"].push({**SHARDS, "README.md": b"more"})
    assert judged.answer(f"org/shards@{commit}").green
