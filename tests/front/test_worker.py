"""A worker's crash, hang or out-of-memory is a finding that says what it was doing; the tool goes on."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from compatfix.errors import UsageError
from compatfix.process import Step, Worker, WorkerFailed


@pytest.fixture(scope="module")
def worker():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with Worker() as process:
            yield process


def job(name):
    return f"worker_jobs:{name}"


def test_a_result_comes_back_and_prints_do_not_disturb_it(worker):
    steps = []
    assert worker.run(job("echo"), {"a": [1, "ü"]}, on_step=steps.append) == {"a": [1, "ü"]}
    assert steps == [Step("starting worker_jobs:echo"), Step("echoing", 1, 2)]


def test_the_versions_are_those_of_the_environment_under_test(worker):
    import torch

    assert worker.wait_ready()["torch"] == torch.__version__
    assert worker.wait_ready()["python"] == sys.version.split()[0]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("crash", "CF010", ["killed by signal 11", "running layer 3"]),
        ("leave", "CF010", ["exit code 7", "leaving"]),
        ("out_of_memory_kill", "CF012", ["killed by signal 9", "growing"]),
        ("fail", "CF013", ["ZeroDivisionError: division by zero"]),
    ],
)
def test_a_death_is_a_finding(worker, name, code, words):
    with pytest.raises(WorkerFailed) as caught:
        worker.run(job(name), {})
    assert caught.value.finding.code == code
    assert caught.value.finding.evidence == "measured"
    for word in words:
        assert word in caught.value.finding.message


def test_a_hang_is_stopped_and_names_its_last_step(worker):
    start = time.monotonic()
    with pytest.raises(WorkerFailed) as caught:
        worker.run(job("hang"), {}, time_limit=1.0)
    assert time.monotonic() - start < 20
    assert caught.value.finding.code == "CF011"
    assert caught.value.finding.message == "no answer within 1 s; last step: waiting (2/9)"


def test_a_memory_limit_turns_an_allocation_into_a_finding(worker):
    with pytest.raises(WorkerFailed) as caught:
        worker.run(job("allocate"), {"bytes": 4e9}, memory_limit=2_000_000_000)
    assert caught.value.finding.code == "CF012"
    assert "allocating" in caught.value.finding.message or "allocate" in caught.value.finding.message
    assert worker.run(job("allocate"), {"bytes": 4e6}, memory_limit=2_000_000_000) == 0.0


def test_bad_input_is_one_line_for_the_user(worker):
    with pytest.raises(UsageError, match=r"no config\.json in models/qwen"):
        worker.run(job("refuse"), {})


def test_every_job_starts_from_clean_modules(worker):
    assert worker.run(job("module_state"), {}) is False
    assert worker.run(job("module_state"), {}) is False


def test_jobs_run_side_by_side(worker):
    results = {}

    def call(name):
        try:
            results[name] = worker.run(job("hang"), {}, time_limit=1.5)
        except WorkerFailed as failure:
            results[name] = failure.finding.code

    threads = [threading.Thread(target=call, args=(n,)) for n in range(2)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: "CF011", 1: "CF011"}
    assert time.monotonic() - start < 2.9


def test_a_killed_worker_ends_every_job_that_waits_and_every_later_one():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with Worker() as process:
            process.wait_ready()
            threading.Timer(1.0, lambda: os.kill(process._process.pid, signal.SIGKILL)).start()
            start = time.monotonic()
            for _ in range(2):
                with pytest.raises(WorkerFailed) as caught:
                    process.run(job("hang"), {}, time_limit=30)
                assert caught.value.finding.code == "CF012"
            assert time.monotonic() - start < 15


def test_threads_may_wait_for_the_start_together():
    with Worker() as process:
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(process.wait_ready())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(seen) == 3


def test_a_missing_interpreter_is_one_clear_line():
    with pytest.raises(UsageError, match="cannot start /nowhere/python"), Worker("/nowhere/python"):
        pass


def test_an_interpreter_without_torch_is_one_clear_line(tmp_path):
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    with Worker(python) as bare, pytest.raises(UsageError, match=r"cannot import torch and transformers.*torch"):
        bare.wait_ready()
