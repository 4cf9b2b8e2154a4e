"""`compatfix doctor` as a user runs it: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .fakes import ABORTS, HANGS, RAISES, linear_attention, package

ROOT = Path(__file__).parents[2]
TARGETS = ROOT / "examples" / "targets"
ERA = os.environ.get("COMPATFIX_ERA_457") or str(ROOT / ".venv-era" / "4.57.6" / "bin" / "python")


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.out)
        return told

    @property
    def packages(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.report["sections"]["doctor"]["packages"]}

    @property
    def findings(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for finding in self.report["findings"]:
            found.setdefault(finding["code"], []).append(f"{finding['level']} {finding['message']}")
        return found


def doctor(*args: str | Path, path: Path | None = None) -> Run:
    search = os.pathsep.join(map(str, filter(None, (path, ROOT))))
    command = [sys.executable, "-m", "compatfix.cli", "doctor", *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": search}, timeout=400
    )
    return Run(done.returncode, done.stdout, done.stderr)


def test_without_a_target() -> None:
    run = doctor()
    assert run.code == 0
    assert run.out.endswith("doctor: fit (without a target: name one with --target)\n")
    assert "measured python " in run.out
    assert "\nPackages\n" in run.out
    rows = {line.split()[0]: line for line in run.out.splitlines() if line.strip()}
    assert "works" in rows["tokenizers"]
    assert "accepted and WRONG" in rows["eager"]
    assert "Memory at" not in run.out


def test_a_target_with_packages_that_work_raise_crash_and_hang(tmp_path: Path) -> None:
    linear_attention(tmp_path)
    package(tmp_path, "causal_conv1d", RAISES)
    package(tmp_path, "mamba_ssm", ABORTS)
    package(tmp_path, "bitsandbytes", HANGS)
    target, draft = TARGETS / "qwen3.6-27b", TARGETS / "qwen3.6-27b-dflash"
    run = doctor("--target", target, "--draft", draft, "--import-limit", 5, "--format", "json", path=tmp_path)
    assert run.code == 1
    assert run.err.splitlines()[-1].startswith("doctor: not fit (")
    packages, section = run.packages, run.report["sections"]["doctor"]
    assert (packages["flash-linear-attention"]["state"], packages["flash-linear-attention"]["version"]) == (
        "works",
        "0.4.1",
    )
    assert packages["causal-conv1d"]["error"].startswith("ImportError: libcudart.so.12")
    assert packages["mamba-ssm"]["error"] == "the import crashed the process (SIGABRT)"
    assert packages["bitsandbytes"]["error"] == "the import did not end within 5 s"
    assert [line.split()[0] for line in run.findings["CF014"]] == ["error", "error", "warning"]
    paths = {path["package"]: path["state"] for path in section["observed"]["paths"]}
    assert paths == {"flash-linear-attention": "used", "causal-conv1d": "fallback"}
    sizes = {item["key"]: item["bytes"] for item in section["memory"]["items"]}
    assert sizes["target"] == pytest.approx(53.8e9, rel=0.01)
    assert sizes["logits"] == 65 * 248320 * 4
    assert sizes["hidden needed"] == 5 * 4096 * 5120 * 2
    assert {s["evidence"] for s in run.report["statements"]} == {"measured", "read"}


def test_a_package_that_keeps_transformers_from_being_imported_is_named(tmp_path: Path) -> None:
    run = doctor("--format", "json", path=package(tmp_path, "accelerate", RAISES))
    assert run.code == 1
    assert run.packages["accelerate"]["state"] == "broken"
    assert any("torch and transformers cannot be imported (" in line for line in run.findings["CF014"])


def test_a_model_type_that_is_unknown_here_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such"}')
    run = doctor("--target", tmp_path, "--format", "json")
    assert run.code == 1
    assert "does not know the model type 'no_such'" in run.findings["CF005"][0]
    assert run.packages["tokenizers"]["state"] == "works"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("--draft", TARGETS / "qwen3.6-27b-dflash"), "--draft needs --target: what a draft costs is planned beside"),
        (("--target", "no/such/model"), "no/such/model does not exist"),
        (("--target", TARGETS / "qwen3-8b-dflash"), "holds a DFlash draft; give the target here"),
        (("--target", TARGETS / "qwen3-8b", "--draft", TARGETS / "qwen3-8b"), "holds no DFlash draft: its config"),
        (("--python", "/nowhere/python"), "cannot start /nowhere/python"),
        (("--context", "0"), "Invalid value for '--context'"),
    ],
)
def test_bad_use_is_one_line_and_2(args: tuple[str | Path, ...], error: str) -> None:
    run = doctor(*args)
    assert (run.code, run.out) == (2, "")
    assert error in run.err.splitlines()[-1]


@pytest.mark.era
def test_another_environment(tmp_path: Path) -> None:
    if not Path(ERA).exists():
        pytest.fail(f"no interpreter with transformers 4.57 at {ERA}: run `make era`", pytrace=False)
    config = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = doctor("--target", tmp_path, "--python", ERA, "--format", "json")
    assert run.code == 0, run.findings
    section = run.report["sections"]["doctor"]
    assert section["machine"]["transformers"].startswith("4.57.")
    paths = {path["package"]: path for path in section["observed"]["paths"]}
    assert paths["flash-linear-attention"]["state"] == "fallback"
    assert "torch_chunk_gated_delta_rule" in paths["flash-linear-attention"]["substitutes"]
    states = {t["name"]: t["state"] for t in section["attention"]["trials"] if t["form"] == "float"}
    assert (states["eager"], states["sdpa"]) == ("right", "right")
