"""The reference implementation is lossless in the environment that it was written for.

`lossless_qwen3.py` runs there, under its own interpreter and without compatfix; here its report
is read. The interpreter is COMPATFIX_ERA_457, else the one that `make era` creates.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DEFAULT_PYTHON = HERE.parents[1] / ".venv-era" / "4.57.6" / "bin" / "python"

pytestmark = pytest.mark.era


@pytest.fixture(scope="module")
def report() -> dict:
    python = os.environ.get("COMPATFIX_ERA_457") or str(DEFAULT_PYTHON)
    if not Path(python).exists():
        pytest.fail(
            f"no interpreter with transformers 4.57 at {python}: run `make era`, or set COMPATFIX_ERA_457 to one",
            pytrace=False,
        )
    run = subprocess.run([python, "-I", str(HERE / "lossless_qwen3.py")], capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_the_environment_is_the_one_meant(report):
    assert report["transformers"].startswith("4.57.")
    assert not report["compatfix_imported"]


def test_three_ways_of_plain_decoding_agree(report):
    assert report["baselines"] == [True] * 9


def test_chain_equals_plain_decoding(report):
    assert report["chain"]["lossless"] == [True] * 9


@pytest.mark.parametrize("budget", ["1", "16", "32", "64"])
def test_tree_equals_plain_decoding(report, budget):
    assert report["trees"][budget]["lossless"] == [True] * 9


def test_eager_attention_equals_plain_decoding(report):
    assert report["eager"] == [True] * 3


def test_a_random_draft_costs_speed_and_nothing_else(report):
    assert report["random_draft"] == [True] * 3


def test_the_loop_of_the_draft_model_equals_plain_decoding(report):
    assert report["own_loop"] == [True] * 3


@pytest.mark.parametrize("budget", ["16", "32", "64"])
def test_the_oracle_makes_long_paths_in_trees(report, budget):
    assert report["trees"][budget]["mean_accepted"] > 2.5
    assert report["trees"][budget]["rounds_off_the_first_branch"] > 10


def test_the_oracle_makes_long_paths_in_chains(report):
    assert report["chain"]["mean_accepted"] > 2.5


def test_a_tree_of_one_node_commits_two_tokens_at_most(report):
    assert set(report["trees"]["1"]["lengths"]) == {"1", "2"}
    assert report["trees"]["1"]["mean_accepted"] > 1.5


@pytest.mark.parametrize("name", ["chain", "16", "32", "64"])
def test_full_partial_and_no_acceptance_all_occur(report, name):
    result = report["chain"] if name == "chain" else report["trees"][name]
    lengths = {int(length) for length in result["lengths"]}
    assert {1, 8} <= lengths
    assert lengths & {3, 4, 5, 6}


@pytest.mark.parametrize("name", ["chain", "1", "16", "32", "64"])
def test_the_draft_sees_the_context_of_plain_decoding(report, name):
    result = report["chain"] if name == "chain" else report["trees"][name]
    assert result["draft_cache_error"] < 1e-4
    assert result["context_error"] < 1e-4


@pytest.mark.parametrize("loop", ["chain", "tree"])
def test_a_stop_token_inside_a_path_ends_the_text(report, loop):
    stops = [stop for stop in report["stops"] if stop["loop"] == loop]
    assert len(stops) == 3
    for stop in stops:
        assert stop["right"]
        assert stop["inside_a_path"]
        assert stop["rounds_saved"] > 0


@pytest.mark.parametrize("loop", ["chain", "tree"])
def test_the_length_limit_cuts_a_path(report, loop):
    limits = [limit for limit in report["limits"] if limit["loop"] == loop]
    assert len(limits) == 12
    for limit in limits:
        assert limit["right"]
        assert limit["inside_a_path"]


def test_text_that_holds_the_mask_token_loses_it(report):
    """The one published fault that bites on this target too."""
    expected = {"lossless": False, "only_the_mask_token_is_missing": True}
    assert report["mask_token"] == [expected] * 3


@pytest.mark.parametrize(
    "fault",
    ["siblings visible", "positions by index", "stale mask", "first tokens kept", "last key lost"],
)
def test_a_planted_fault_shows_in_the_text(report, fault):
    assert report["faults"][fault] is True


def test_the_benchmark_saves_one_result_for_each_method(report):
    results = report["benchmark"]
    assert list(results) == ["baseline", "dflash", "ddtree-8", "ddtree-16"]
    for numbers in results.values():
        assert numbers["num_prompts"] == numbers["same_as_baseline"] == 2
        assert numbers["num_output_tokens"] == 24
        assert numbers["time_per_output_token"] > 0
    assert results["baseline"]["speedup"] == 1.0
