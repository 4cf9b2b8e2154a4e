"""Timed runs on a small checkpoint: what runs, in which order, with what in its way, and what is counted apart."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from compatfix.validate import job, measure, weights
from compatfix.validate.measured import summarise
from compatfix.validate.sampler import Sampler

pytestmark = pytest.mark.usefixtures("clean_modules")


def bench_of(checkpoint: Any) -> weights.WeightsBench:
    root, target, draft = checkpoint
    args = {"tree": str(root), "target": str(target), "draft": str(draft), "seed": 0}
    return weights.load_bench(args, lambda *step: None)


def measured(bench: weights.WeightsBench, *, repetitions: int = 2, **changes: Any) -> dict[str, Any]:
    given = {"prompts": [[5, 6, 7], [8, 9]], "budgets": [4], "tokens": 6, "sampler": None, "seconds": None, **changes}
    return measure.run_measure(bench, **given, repetitions=repetitions, report=lambda *step: None)


def test_every_mode_runs_every_prompt_in_every_repetition(checkpoint):
    raw = measured(bench_of(checkpoint))
    modes = ["plain", "chain", "tree-4", "plain again", "library"]
    runs = {(run["mode"], run["prompt"], run["repetition"]) for run in raw["runs"]}
    assert runs == {(mode, prompt, repetition) for mode in modes for prompt in (0, 1) for repetition in (0, 1)}
    assert len(raw["runs"]) == len(runs)
    assert all(run["tokens"] == 6 and run["decode_seconds"] > 0 and run["prefill_seconds"] > 0 for run in raw["runs"])
    first = [raw["runs"][start]["mode"] for start in range(0, len(raw["runs"]), len(modes))]
    assert len(set(first)) > 2
    assert raw["errors"] == {}


def test_counts_are_those_of_the_watch_and_leave_the_prefill_out(checkpoint):
    counted = {row["mode"]: row for row in measured(bench_of(checkpoint), repetitions=1)["counted"]}
    plain, chain = counted["plain"], counted["chain"]
    assert (plain["tokens"], plain["target_forwards"], plain["draft_forwards"]) == (12, 12, 0)
    assert chain["target_forwards"] == chain["rounds"] == chain["draft_forwards"] == len(chain["lengths"])
    assert sum(chain["lengths"]) >= chain["tokens"] == 12
    # Plain decoding looks at its token each round; a chain looks at more.
    assert 1 <= plain["reads_per_round"] <= chain["reads_per_round"]
    assert any(place.startswith("speculate.py:") for place in chain["read_places"])


def test_nothing_is_left_on_the_target_while_it_decodes(checkpoint, monkeypatch):
    """The one hook of a timed run is gone when the prefill is; the watch is not there at all."""
    bench = bench_of(checkpoint)
    target, hooks = bench.target, []
    real = target.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        hooks.append((len(target._forward_hooks), len(target._forward_pre_hooks), bench.watch.active))
        return real(*args, **kwargs)

    settings = measure.Settings([[5, 6, 7]], 6, [], None, 0)
    monkeypatch.setattr(target, "forward", forward)
    measure._timed(bench, measure.Contender("chain", bench.modes([4])[0]), 0, 0, settings)
    assert hooks[0] == (1, 0, False)
    assert len(hooks) > 2
    assert set(hooks[1:]) == {(0, 0, False)}
    assert not target._forward_hooks


def test_the_prefill_ends_when_the_whole_prompt_was_seen():
    target = torch.nn.Identity()
    with measure._prefill_end(target, 5, torch.device("cpu")) as ended:
        target(torch.zeros(1, 3))
        assert ended == []
        target(torch.zeros(1, 2))
        target(torch.zeros(1, 1))
    assert len(ended) == 1


def test_a_mode_that_raises_is_named_and_the_others_are_timed(checkpoint, monkeypatch):
    bench = bench_of(checkpoint)
    real = bench.call

    def call(mode: Any, *args: Any) -> Any:
        if mode.kind == "tree":
            raise RuntimeError("no tree today")
        return real(mode, *args)

    monkeypatch.setattr(bench, "call", call)
    raw = measured(bench, repetitions=1)
    assert raw["errors"]["tree-4"]["message"] == "no tree today"
    assert {run["mode"] for run in raw["runs"]} == {"plain", "chain", "plain again", "library"}


def test_sampling_that_a_mode_cannot_do_is_said(checkpoint):
    raw = measured(bench_of(checkpoint), repetitions=1, sampler=Sampler(0.8, top_p=0.9))
    assert raw["sampler"] == "temperature 0.8, top-p 0.9"
    assert {error["message"] for error in raw["errors"].values()} <= {"takes no temperature", "takes no top_p"}
    assert raw["errors"]
    assert "library" not in {run["mode"] for run in raw["runs"]}


def test_the_time_limit_ends_it_between_repetitions(checkpoint):
    raw = measured(bench_of(checkpoint), repetitions=50, seconds=0.01)
    assert (raw["planned"], raw["repetitions"]) == (50, 1)
    assert any("1 of 50 repetitions" in warning for warning in summarise(raw, 0)["warnings"])


@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("4,2", 4), ("", None), ("0", None), ("many", None)])
def test_timed_runs_get_the_threads_that_a_script_would_get(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert measure.threads_in_use() == (threads or len(os.sched_getaffinity(0)))


def test_the_job_measures_what_the_weights_leg_ran_on(checkpoint):
    root, target, draft = checkpoint
    args = {"task": "measure", "tree": str(root), "target": str(target), "draft": str(draft), "seed": 0}
    sizes = {
        "prompts": 2,
        "tokens": 6,
        "budgets": [4],
        "repetitions": 1,
        "temperature": None,
        "seconds": 60.0,
        "threads": 1,
    }
    answer = job.run({**args, **sizes}, lambda *step: None)
    assert answer["error"] is None
    section = summarise(answer["result"], 0)
    assert section["tiny"] is True
    assert [row["mode"] for row in section["rows"]] == ["plain", "plain again", "chain", "tree-4", "library"]
    assert section["target"]["bytes"] == 4 * section["target"]["parameters"]
