"""The verdict that a green run leaves in a patched tree, and what takes it away again."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from compatfix.attest.fingerprint import Request, Used
from compatfix.attest.state import tree_state
from compatfix.attest.travelling import leave
from compatfix.model import SCOPES, Report, ScopeVerdict, Verdict

RUN = {"on": "tiny", "packages": {"torch": "2"}}


def report(status):
    scopes = tuple(ScopeVerdict(scope, status if scope == "code" else "unmeasured", "") for scope in SCOPES)
    return Report("gate", {}, verdict=Verdict(scopes), started="2026-12-01", required=("code",))


class Tree:
    def __init__(self, base):
        self.root, self.run = base / "tree", base / "run"
        (self.root / "compatfix_runtime").mkdir(parents=True)
        (self.root / "loop.py").write_text("")
        (self.root / "prompts.json").write_text("{}")
        self.run.mkdir()
        self.file = self.root / "compatfix_runtime" / "attest.json"

    def leave(self, status, target="target", patch=None, observed=(RUN,), on="tiny"):
        used = Used(tree=tree_state(self.root), observed=observed)
        options = {"command": "gate", "on": on, "patch": patch}
        return leave(report(status), Request(self.root, target, "draft", self.run, options), used, self.run)

    def verdicts(self, place=None):
        return json.loads((place or self.file).read_text())["verdicts"]


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_green_run_leaves_it_in_the_tree_and_beside_the_report(tree):
    assert tree.leave("passed") is None
    (entry,) = tree.verdicts().values()
    assert entry["scopes"]["code"] == "passed"
    assert entry["scopes"]["weights"] == "unmeasured"
    assert entry["runs"] == [RUN]
    assert list(entry["tree"]) == ["loop.py"]
    assert tree.verdicts(tree.run / "attest.json") == tree.verdicts()


def test_it_is_no_part_of_what_is_judged(tree):
    before = tree_state(tree.root)
    tree.leave("passed")
    assert tree_state(tree.root) == before


def test_a_copy_that_was_judged_is_gone_and_leaves_it_beside_the_report_only(tree):
    assert tree.leave("passed", patch="copy") is None
    assert not tree.file.exists()
    assert len(tree.verdicts(tree.run / "attest.json")) == 1


@pytest.mark.parametrize(("status", "kept"), [("failed", 1), ("undecided", 1), ("unmeasured", 2), ("passed", 2)])
def test_a_failure_takes_its_own_verdict_away_and_no_other(tree, status, kept):
    tree.leave("passed")
    tree.leave("passed", target="another target")
    tree.leave(status)
    assert len(tree.verdicts()) == kept
    assert any("another target" in key for key in tree.verdicts())


@pytest.mark.parametrize("spelt", ["models/target", "models/target/", "models/../models/target", "link", "absolute"])
@pytest.mark.parametrize("patch", [None, "copy"])
def test_a_failure_takes_it_away_however_the_target_is_spelt(tree, monkeypatch, tmp_path, spelt, patch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "target").mkdir(parents=True)
    (tmp_path / "link").symlink_to("models/target")
    tree.leave("passed", target="models/target")
    tree.leave("failed", target=str(tmp_path / "models/target") if spelt == "absolute" else spelt, patch=patch)
    assert tree.verdicts() == {}


@pytest.mark.parametrize("status", ["failed", "undecided"])
def test_a_failure_takes_away_what_was_green_on_other_weights(tree, status):
    tree.leave("passed")
    tree.leave("passed", on="weights")
    tree.leave(status, on="weights")
    assert tree.verdicts() == {}


def test_runs_that_end_at_the_same_time_lose_nothing(tree):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: tree.leave("passed", target=f"target {number}"), range(24)))
    assert len(tree.verdicts()) == 24


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 9}', '{"schema": 2, "verdicts": 3}', "[" * 200_000])
def test_a_file_that_cannot_be_read_is_written_anew(tree, text):
    tree.file.write_text(text)
    assert tree.leave("passed") is None
    assert len(tree.verdicts()) == 1


def test_a_tree_without_a_runtime_is_left_alone(tree):
    tree.file.parent.rmdir()
    assert tree.leave("passed", observed=()) is None
    assert sorted(path.name for path in tree.root.iterdir()) == ["loop.py", "prompts.json"]


def test_a_place_that_cannot_be_written_is_told_in_a_line(tree):
    tree.file.mkdir()
    assert tree.leave("passed").startswith("the verdict for the patched code was not written: ")
