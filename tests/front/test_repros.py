"""Scripts for upstream reports: they stand alone, and they show what they say on the versions that have the fault."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compatfix.codes import CODES
from compatfix.repros import available, script

from .conftest import ROOT
from .test_cli import imports

HERE = Path(__file__).parent
SCRIPTS = ROOT / "compatfix" / "repros"
ERA = os.environ.get("COMPATFIX_ERA_457") or str(ROOT / ".venv-era" / "4.57.6" / "bin" / "python")

SHOWN, ABSENT, UNTOLD = 1, 0, 2
# What each script must come to on transformers 4.57; on 5.24 all of these faults are there.
ON_457 = {
    "CF101": UNTOLD,
    "CF102": SHOWN,
    "CF103": SHOWN,
    "CF201": SHOWN,
    "CF202": ABSENT,
    "CF203": ABSENT,
    "CF204": UNTOLD,
    "CF205": UNTOLD,
    "CF206": UNTOLD,
    "CF207": SHOWN,
    "CF301": SHOWN,
    "CF303": SHOWN,
    "CF304": SHOWN,
    "CF408": SHOWN,
    "CF501": ABSENT,
    "CF502": SHOWN,
    "CF601": SHOWN,
    "CF602": SHOWN,
}
WORDS = {SHOWN: "FAULT SHOWN: ", ABSENT: "not in this version: ", UNTOLD: "cannot tell: "}


def ran(python):
    run = subprocess.run(
        [python, "-I", str(HERE / "run_scripts.py"), *(str(SCRIPTS / f"{code}.py") for code in available())],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    kernels, *results = map(json.loads, run.stdout.splitlines())
    return {line["script"].removesuffix(".py"): line for line in results}, kernels


@pytest.fixture(scope="module")
def results():
    return ran(sys.executable)


@pytest.fixture(scope="module")
def results_on_457():
    if not Path(ERA).exists():
        pytest.fail(f"no interpreter with transformers 4.57 at {ERA}: run `make era`", pytrace=False)
    return ran(ERA)


def test_every_script_belongs_to_a_code():
    assert set(available()) <= set(CODES)
    assert set(available()) == set(ON_457)


@pytest.mark.parametrize("code", available())
def test_a_script_is_short_and_stands_alone(code):
    text = script(code)
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 50
    modules = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert modules <= {"sys", "torch", "transformers"}
    told = ast.get_docstring(tree)
    assert "\nExpected: " in told
    assert "\nObserved: " in told


def assert_told(ran, code, expected):
    """Two scripts show what a machine lacks, and say that they cannot tell where it does not lack it."""
    results, kernels = ran
    result, wanted = results[code], UNTOLD if kernels.get(code) else expected
    assert result["code"] == wanted, result
    last = result["out"].splitlines()[-1]
    assert last.startswith(WORDS[wanted]), result


@pytest.mark.parametrize("code", available())
def test_a_script_shows_its_fault_on_this_transformers(results, code):
    assert_told(results, code, SHOWN)


@pytest.mark.era
@pytest.mark.parametrize("code", available())
def test_a_script_tells_what_transformers_457_has(results_on_457, code):
    assert_told(results_on_457, code, ON_457[code])


def test_the_command_prints_and_writes(compatfix):
    run = compatfix("repro", "absolute-crop")
    assert (run.code, run.out) == (0, (SCRIPTS / "CF203.py").read_text())
    run = compatfix("repro", "CF203", "--output", "crop.py")
    assert (run.code, run.out) == (0, "wrote crop.py\n")
    assert (compatfix.directory / "crop.py").read_text() == script("CF203")


def test_what_has_no_script_says_what_has(compatfix):
    run = compatfix("repro", "CF401")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: no script for CF401; there is one for CF101, CF102, ")
    assert run.err.count("\n") == 1
    assert compatfix("repro", "CF999").err == "error: no code CF999 (compatfix rules lists them)\n"
    run = compatfix("repro", "CF203", "--output", "nowhere/crop.py")
    assert (run.code, run.err) == (2, "error: cannot write nowhere/crop.py: No such file or directory\n")


def test_a_script_is_printed_without_heavy_imports():
    assert not imports("repro", "CF203") & {"torch", "transformers", "numpy", "libcst", "rich"}
