"""The last green verdict answers as long as nothing changed, and never longer."""

import os
import shutil
import time

import pytest

from compatfix.attest.fingerprint import Request
from compatfix.attest.ledger import Ledger
from compatfix.attest.state import tree_state
from compatfix.model import SCOPES, Report, ScopeVerdict, Verdict


def report(status):
    scopes = tuple(ScopeVerdict(scope, status if scope == "code" else "unmeasured", "") for scope in SCOPES)
    return Report("validate", {}, verdict=Verdict(scopes), started="2026-12-01T00:00:00", required=("code",))


class Setting:
    """A tree, models and a library on disk, and a run that read them."""

    def __init__(self, base):
        self.base = base
        for name, text in {
            "tree/loop.py": "import os\nos.environ.get('SPEED_OF_LOOP')\n",
            "tree/data/table.json": "{}",
            "target/config.json": "{}",
            "target/tokenizer.json": "{}",
            "draft/config.json": "{}",
            "site/lib/__init__.py": "x = 1\n",
            "site/other-1.0.dist-info/METADATA": "Version: 1.0\n",
        }.items():
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        # Above the size that is hashed.
        (base / "target" / "model.safetensors").write_bytes(bytes(2 << 20))
        self.options = {"command": "validate", "budgets": [8]}

    def ledger(self, **options):
        base = self.base
        named = {**self.options, **options}
        return Ledger(Request(base / "tree", str(base / "target"), str(base / "draft"), base / "reports", named))

    def run(self, status="passed", meanwhile=lambda: None):
        time.sleep(0.02)  # file times are coarser than the clock
        ledger = self.ledger()
        ledger.begin()
        ledger.used.tree = tree_state(self.base / "tree")
        ledger.used.files = {str(self.base / "site/lib/__init__.py"), str(self.base / "settings.json")}
        ledger.used.place = {
            "executable": shutil.which("python3"),
            "prefix": "/usr",
            "path": [str(self.base / "site")],
            "user_site": str(self.base / "nowhere"),
        }
        time.sleep(0.02)
        meanwhile()
        place = self.base / "reports" / f"run-{time.time_ns()}"
        place.mkdir(parents=True)
        return ledger.keep(report(status), place)


@pytest.fixture
def setting(tmp_path):
    return Setting(tmp_path)


def test_nothing_changed_is_answered_with_what_passed_and_where(setting):
    assert setting.run() is None
    answer = setting.ledger().answer()
    assert answer.green, answer.line
    assert "code passed" in answer.line
    assert "2026-12-01" in answer.line
    assert str(setting.base / "reports") in answer.line


def rewrite(name, text):
    return lambda base: (base / name).write_text(text)


def in_place_with_its_old_time(name):
    def change(base):
        path = base / name
        old = path.stat()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        with open(path, "r+b") as file:
            file.write(data)
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))

    return change


def new(name):
    def change(base):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("")

    return change


CHANGES = {
    "a file of the tree": (rewrite("tree/loop.py", "x = 2\n"), "loop.py differs"),
    "a file of the tree, its time put back": (in_place_with_its_old_time("tree/loop.py"), "loop.py differs"),
    "data in the tree": (rewrite("tree/data/table.json", "[]"), "data/table.json differs"),
    "a new file in the tree": (new("tree/torch.py"), "torch.py is new"),
    "a file of the tree is gone": (lambda base: (base / "tree/data/table.json").unlink(), "table.json is gone"),
    "the target's config": (rewrite("target/config.json", "[]"), "target: config.json differs"),
    "the tokenizer": (rewrite("target/tokenizer.json", "[]"), "target: tokenizer.json differs"),
    "weights, their time put back": (in_place_with_its_old_time("target/model.safetensors"), "target: model.safe"),
    "the draft's config": (rewrite("draft/config.json", "[]"), "draft: config.json differs"),
    "a library, its time put back": (in_place_with_its_old_time("site/lib/__init__.py"), "lib/__init__.py differs"),
    "a module that shadows": (new("site/json.py"), "modules or packages"),
    "a package that shadows": (new("site/yaml/__init__.py"), "modules or packages"),
    "a module beside an imported one": (new("site/lib/more.py"), "modules or packages"),
    "a new distribution": (new("site/fla-1.0.dist-info/METADATA"), "modules or packages"),
    "a distribution is gone": (lambda base: shutil.rmtree(base / "site/other-1.0.dist-info"), "modules or packages"),
    "a distribution's version": (rewrite("site/other-1.0.dist-info/METADATA", "2"), "modules or packages"),
    "a .pth file": (new("site/hook.pth"), "modules or packages"),
    "a user site": (new("nowhere/x.py"), "modules or packages"),
    "a file that was looked for in vain": (new("settings.json"), "settings.json is new"),
    "the report of the run is gone": (lambda base: shutil.rmtree(base / "reports"), "no green verdict"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named_and_not_answered(setting, change):
    assert setting.run() is None
    make, told = CHANGES[change]
    time.sleep(0.02)
    make(setting.base)
    answer = setting.ledger().answer()
    assert not answer.green
    assert told in answer.line


@pytest.mark.parametrize("name", ["TORCH_LOGS", "HF_HOME", "CUBLAS_WORKSPACE_CONFIG", "SPEED_OF_LOOP"])
def test_a_variable_that_matters_is_seen(setting, monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    assert setting.run() is None
    monkeypatch.setenv(name, "1")
    assert f"environment variable {name} is set" in setting.ledger().answer().line


def test_a_token_is_not_written_down(setting, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    assert setting.run() is None
    written = next((setting.base / "reports").glob("run-*/verdict.json")).read_text()
    assert "HF_TOKEN" in written
    assert "very-secret" not in written


def test_other_options_are_not_answered_and_are_named(setting):
    assert setting.run() is None
    answer = setting.ledger(budgets=[16]).answer()
    assert not answer.green
    assert "budgets is [16], judged [8]" in answer.line


def test_a_red_run_leaves_nothing_green_behind(setting):
    assert setting.run() is None
    assert setting.run("failed") is None
    assert not setting.ledger().answer().green


@pytest.mark.parametrize("name", ["tree/loop.py", "target/model.safetensors", "site/lib/__init__.py"])
def test_what_changed_while_the_run_went_on_is_not_kept(setting, name):
    kept = setting.run(meanwhile=lambda: in_place_with_its_old_time(name)(setting.base))
    assert kept is not None
    assert not setting.ledger().answer().green


def test_a_module_that_came_while_the_run_went_on_is_not_kept(setting):
    assert setting.run(meanwhile=lambda: new("site/json.py")(setting.base)) is not None


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema": 1}', '{"schema": 2}'])
def test_a_damaged_fingerprint_is_not_believed(setting, damage):
    assert setting.run() is None
    next((setting.base / "reports").glob("run-*/verdict.json")).write_text(damage)
    assert not setting.ledger().answer().green
