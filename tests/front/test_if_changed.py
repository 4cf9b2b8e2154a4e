"""The last green verdict answers as long as nothing changed, and never longer."""

import json
import os
import shutil
import time

import pytest

from compatfix.attest.fingerprint import Request
from compatfix.attest.ledger import Ledger
from compatfix.attest.state import tree_state
from compatfix.model import SCOPES, Report, ScopeVerdict, Verdict
from compatfix.report.files import write_report


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

    def ledger(self, reports="reports", **options):
        base = self.base
        named = {**self.options, **options}
        return Ledger(Request(base / "tree", str(base / "target"), str(base / "draft"), base / reports, named))

    def run(self, status="passed", meanwhile=lambda: None, reports="reports"):
        time.sleep(0.02)  # file times are coarser than the clock
        ledger = self.ledger(reports)
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
        place = write_report(report(status), self.base / reports)
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


@pytest.mark.parametrize("reports", ["tree/reports", "tree"])
def test_reports_below_the_tree_are_no_part_of_it(setting, reports):
    assert setting.run(reports=reports) is None
    assert setting.ledger(reports).answer().green
    assert setting.run(reports=reports) is None
    write_report(report("failed"), setting.base / reports)
    assert setting.ledger(reports).answer().green


@pytest.mark.parametrize(
    "name",
    [
        "tree/reports/settings.py",
        "tree/reports/table.json",
        "tree/reports/20261201T050000-gate/report.py",
        "tree/reports/helpers/report.json",
        "tree/helpers/settings.py",
        "tree/venv/settings.py",
        "tree/venv/lib/settings.py",
    ],
)
def test_code_of_the_tree_counts_wherever_it_lies(setting, name):
    for marker in ("helpers/pyvenv.cfg", "venv/pyvenv.cfg", "venv/bin/python"):
        new(f"tree/{marker}")(setting.base)
    new(name)(setting.base)
    assert setting.run(reports="tree/reports") is None
    assert setting.ledger("tree/reports").answer().green
    rewrite(name, "WIDTH = 2\n")(setting.base)
    answer = setting.ledger("tree/reports").answer()
    assert not answer.green
    assert f"{name.removeprefix('tree/')} differs" in answer.line


def test_packages_of_an_environment_in_the_tree_are_not_hashed(setting):
    for name in ("pyvenv.cfg", "bin/python", "lib/python3/site-packages/lib.py"):
        new(f"tree/venv/{name}")(setting.base)
    assert sorted(name for name in tree_state(setting.base / "tree") if "venv" in name) == ["venv/pyvenv.cfg"]


@pytest.mark.parametrize("name", ["_", "PWD", "OLDPWD", "SHLVL", "TERM", "SSH_CLIENT", "GIT_INDEX_FILE", "MAKELEVEL"])
def test_a_variable_of_the_shell_is_no_change(setting, monkeypatch, name):
    (setting.base / "tree/loop.py").write_text("import os\nos.environ\n'_', 'PWD', 'OLDPWD', 'SHLVL'\n")
    assert setting.run() is None
    monkeypatch.setenv(name, "otherwise")
    assert setting.ledger().answer().green


@pytest.mark.parametrize(
    "name",
    [
        "TORCH_LOGS",
        "HF_HOME",
        "CUBLAS_WORKSPACE_CONFIG",
        "SPEED_OF_LOOP",
        "USE_HUB_KERNELS",
        "DISABLE_KERNEL_MAPPING",
        "USE_TORCH_XLA",
        "XLA_FLAGS",
        "PJRT_DEVICE",
        "NPU_VISIBLE_DEVICES",
        "PT_XLA_DEBUG",
        "GLIBC_TUNABLES",
        "NPY_DISABLE_CPU_FEATURES",
        "OPENBLAS_CORETYPE",
        "MKL_CBWR",
        "NVPL_BLAS_DEBUG_CPU_TYPE",
        "PATH",
        "LC_ALL",
    ],
)
def test_a_variable_that_matters_is_seen(setting, monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    assert setting.run() is None
    monkeypatch.setenv(name, "1")
    assert f"environment variable {name} is set" in setting.ledger().answer().line


def test_a_token_is_not_written_down(setting, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    assert setting.run() is None
    written = next((setting.base / "reports").glob("*-validate/verdict.json")).read_text()
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


DAMAGES = {
    "cut off": lambda text: text[:1],
    "empty": lambda text: "",
    "a list": lambda text: "[]",
    "no section": lambda text: '{"schema": 1}',
    "another schema": lambda text: '{"schema": 2}',
    "nested without end": lambda text: '{"schema": 1, "tree": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    "no verdict": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "verdict"}),
    "a verdict that is a list": lambda text: json.dumps({**json.loads(text), "verdict": ["code"]}),
    "a verdict of nothing": lambda text: json.dumps({**json.loads(text), "verdict": dict.fromkeys(["time", "report"])}),
    "what passed is no list": lambda text: text.replace('"passed": [\n   "code"\n  ]', '"passed": "code"'),
    "files that are a number": lambda text: json.dumps({**json.loads(text), "files": 3}),
    "a file name that cannot be": lambda text: json.dumps({**json.loads(text), "files": {"\0": None}}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_fingerprint_is_not_believed(setting, damage):
    assert setting.run() is None
    place = next((setting.base / "reports").glob("*-validate/verdict.json"))
    damaged = DAMAGES[damage](place.read_text())
    assert damaged != place.read_text()
    place.write_text(damaged)
    assert not setting.ledger().answer().green


def test_control_characters_of_a_fingerprint_do_not_reach_the_terminal(setting):
    assert setting.run() is None
    place = next((setting.base / "reports").glob("*-validate/verdict.json"))
    saved = json.loads(place.read_text())
    saved["verdict"]["time"] = "2026\x1b[31m\n"
    place.write_text(json.dumps(saved))
    assert "unchanged since 2026\\x1b[31m : code passed" in setting.ledger().answer().line
