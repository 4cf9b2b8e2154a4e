"""What is a finding and how grave it is, on examinations made by hand: first what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compatfix.codes import CODES
from compatfix.doctor.examined import Examined
from compatfix.doctor.facts import Attention, Health, Machine, Observed, Trial
from compatfix.doctor.findings import findings_of
from compatfix.doctor.front import conclusion, report_of
from compatfix.memory_plan import Needs, plan_run
from compatfix.model import Finding
from compatfix.packages import FLA, PACKAGES
from compatfix.profiles import ClassProfile, Device, FastPath, TargetProfile
from compatfix.report.tables import tables

GB = 10**9
CPU = Device("cpu", "cpu", 64 * GB, free=60 * GB)
CARD = Device("cuda:0 H", "cuda", 80 * GB, free=78 * GB)
MACHINE = Machine("3.11", "2.8", "5.24", "CUDA 12.8", (CARD, CPU), True, "/work", 100 * GB)
ON_CPU = replace(MACHINE, build="CPU", devices=(CPU,), gpu_seen=False, gpu_error="AssertionError: not compiled")
CLASS = ClassProfile("SomeLM", ("Auto",), 1, 1, (), None, None, None, None, False)
TARGET = TargetProfile(
    "target", "some", (), "SomeLM", (CLASS,), 8, 8, 1, (), "bfloat16", 2, None, None, cache=None, states=None
)
RIGHT = Trial("sdpa", "float", "right", "", difference=0.0)
ATTENTION = Attention("SomeLM", "cuda", "sdpa", "plain decoding over the root paths", (RIGHT,))
USED = FastPath(FLA, "used", ("fla.ops.chunk",))
SLOW = FastPath(FLA, "fallback", (), ("torch_chunk",))
FIT = Examined(
    tuple(Health(spec.name, "1.0", "works") for spec in PACKAGES),
    "3.11",
    MACHINE,
    TARGET,
    Observed("SomeLM", "cuda", (USED,)),
    ATTENTION,
    plan_run(Needs(50 * GB, 8, 8), MACHINE.devices, context=16, tree_budget=4),
)


def package(name: str, state: str, error: str | None = None) -> Examined:
    rest = tuple(entry for entry in FIT.packages if entry.name != name)
    return replace(FIT, packages=(*rest, Health(name, None if state == "absent" else "1.0", state, error)))


def codes(examined: Examined) -> dict[str, str]:
    return {finding.code: finding.level for finding in findings_of(examined)}


def test_a_fit_environment_has_no_findings() -> None:
    report = report_of({"target": "target"}, FIT)
    assert report.findings == ()
    assert conclusion(report) == "doctor: fit"


@pytest.mark.parametrize(
    ("examined", "expected"),
    [
        pytest.param(package("flash-attn", "absent"), {"CF004": "note"}, id="no flash-attn"),
        pytest.param(package("accelerate", "absent"), {"CF001": "warning"}, id="no accelerate"),
        pytest.param(package("kernels", "absent"), {}, id="nothing asks for it"),
        pytest.param(package(FLA, "broken", "ImportError: x"), {"CF014": "error"}, id="picked up and broken"),
        pytest.param(package("torchao", "broken", "ImportError: x"), {"CF014": "warning"}, id="not asked for"),
        pytest.param(
            replace(package("torchao", "broken", "x"), target=replace(TARGET, quantised="torchao")),
            {"CF014": "error", "CF019": "error"},
            id="asked for and broken",
        ),
        pytest.param(
            replace(package("gptqmodel", "absent"), target=replace(TARGET, quantised="awq")), {}, id="another loads it"
        ),
        pytest.param(
            replace(package("gptqmodel", "absent"), target=replace(TARGET, quantised="gptq")),
            {"CF019": "error"},
            id="none loads it",
        ),
        pytest.param(replace(FIT, machine=replace(MACHINE, gpu_error="x")), {"CF018": "error"}, id="GPU unusable"),
        pytest.param(replace(FIT, machine=replace(ON_CPU, devices=(CPU, CARD))), {}, id="no GPU, no complaint"),
    ],
)
def test_packages_and_devices(examined: Examined, expected: dict[str, str]) -> None:
    assert codes(examined) == expected


@pytest.mark.parametrize(
    ("device", "state", "path", "expected"),
    [
        ("cuda", "works", SLOW, {"CF015": "warning"}),
        ("cpu", "works", SLOW, {"CF015": "note"}),
        ("cuda", "works", replace(SLOW, state="partly"), {"CF015": "warning"}),
        ("cuda", "absent", SLOW, {"CF002": "warning"}),
        ("cpu", "absent", SLOW, {"CF002": "note"}),
        ("cpu", "broken", SLOW, {"CF014": "error"}),
    ],
)
def test_fast_paths(device: str, state: str, path: FastPath, expected: dict[str, str]) -> None:
    examined = replace(package(FLA, state, "x"), observed=Observed("SomeLM", device, (path,)))
    assert codes(examined) == expected


@pytest.mark.parametrize(("culprit", "code"), [(FLA, "CF016"), (None, "CF013")])
def test_a_forward_that_raised(culprit: str | None, code: str) -> None:
    examined = replace(FIT, observed=Observed("SomeLM", "cuda", error="RuntimeError: no", culprit=culprit))
    assert codes(examined) == {code: "error"}


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (Trial("sdpa", "float", "wrong", "", ignored=True), {"CF017": "error"}),
        (Trial("sdpa", "float", "refused", "ValueError: no"), {"CF017": "error"}),
        (Trial("other", "float", "wrong", ""), {"CF017": "warning"}),
        (Trial("eager", "bool", "wrong", ""), {"CF017": "note"}),
        (Trial("flash_attention_2", "float", "refused", ""), {}),
        (Trial("other", "float", "undecided", ""), {}),
    ],
)
def test_masks(trial: Trial, expected: dict[str, str]) -> None:
    assert codes(replace(FIT, attention=replace(ATTENTION, trials=(RIGHT, trial)))) == expected


@pytest.mark.parametrize(
    ("weights", "devices", "expected", "words"),
    [
        (50, (CARD, CPU), {}, ""),
        (55, (replace(CARD, free=20 * GB), CPU), {"CF610": "warning"}, "on none of its accelerators: fits on cpu"),
        (55, (CPU,), {}, ""),
        (70, (CPU,), {"CF610": "error"}, "does not fit: 13.0 GB short on cpu"),
    ],
)
def test_memory(weights: int, devices: tuple[Device, ...], expected: dict[str, str], words: str) -> None:
    plan = plan_run(Needs(weights * GB, 0, 0), devices, context=16, tree_budget=4)
    examined = replace(FIT, machine=replace(MACHINE, devices=devices), plan=plan)
    assert codes(examined) == expected
    assert words in " ".join(finding.message for finding in findings_of(examined))


def test_what_died_is_told_and_stops_a_run() -> None:
    died = Finding("CF010", "error", "measured", "the worker was killed by signal 6")
    report = report_of({}, replace(FIT, died=(died,)))
    assert conclusion(report) == "doctor: not fit (1 finding that stops a run)"


def test_without_a_worker_the_broken_package_is_named() -> None:
    broken = Examined((Health("accelerate", "1.0", "broken", "ImportError: x"),), "3.11", no_worker="ImportError: x")
    messages = [finding.message for finding in findings_of(broken)]
    assert messages[0] == "torch and transformers cannot be imported (accelerate): ImportError: x"
    assert tables(report_of({}, broken))[0].rows[0][:3] == ("accelerate", "1.0", "broken")


@pytest.mark.parametrize("examined", [FIT, package(FLA, "broken", "x"), replace(FIT, target=None, plan=None)])
def test_every_finding_has_a_fix_and_every_statement_its_evidence(examined: Any) -> None:
    report = report_of({}, examined)
    assert all(finding.fix and finding.code in CODES for finding in report.findings)
    assert {statement.evidence for statement in report.statements} <= {"measured", "read"}
    assert len({(s.topic, s.key) for s in report.statements}) == len(report.statements)
