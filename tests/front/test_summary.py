"""The sentences at the end of a run: each says what the report holds, and nothing else."""

from dataclasses import replace

import pytest

from compatfix.model import SCOPES, Report, ScopeVerdict, Verdict
from compatfix.report.files import write_report
from compatfix.summary import summary
from compatfix.validate.judge_speed import judge_draft
from tests.report.made import example, of_weights, verdict


def test_a_report_without_a_verdict_has_none():
    assert summary(Report("inspect", {})) == ()


def test_the_demo_is_told_from_the_crash_to_the_proof():
    told = summary(example())
    assert told[0].startswith("As published, the code stops on this target at dflash.py:")
    assert "wrong text: 1.14 tokens per round with a good draft, where right code has 4.70" in told[1]
    assert told[2].startswith("Patched, it gives exactly the text that the target gives alone: 80 of 80 texts.")
    assert "14 of 14 faults planted on purpose were seen" in told[2]
    assert told[3] == "Not measured here, so not known: kernels, weights, draft, speed."
    assert "`compatfix patch vendor/ddtree_ref` writes the 39 fixes" in told[4]


@pytest.mark.parametrize("status", ["failed", "undecided"])
def test_code_that_did_not_pass_is_never_called_right(status):
    bad = replace(example(), verdict=verdict(code=status))
    told = " ".join(summary(bad))
    assert "exactly the text" not in told
    assert f"The patched code is not proven right ({status}): why code." in told
    assert "compatfix patch" not in told


def test_a_missed_fault_is_counted_as_missed():
    faults = [{**fault, "caught": fault["name"] != "stale-keys"} for fault in example().sections["faults"]]
    told = summary(replace(example(), sections={**example().sections, "faults": faults}))
    applicable = sum(fault["applicable"] for fault in faults)
    caught = sum(fault["applicable"] and fault["caught"] for fault in faults)
    assert caught < applicable
    assert f"{caught} of {applicable} faults" in " ".join(told)


def test_real_weights_are_told_by_mode_and_their_failure_too():
    told = summary(of_weights())
    assert "Weights: failed: why weights." in told
    assert any("2.00 with a chain, 3.00 with a tree of 16 nodes (1.00 would be no gain)" in line for line in told)


def test_the_accepted_length_is_the_one_that_scope_draft_quotes():
    """The watched run goes past the user's stop tokens, the timed one does not: two figures for one thing confuse."""
    rows = [
        {"mode": "plain", "role": "baseline", "accepted_length": 1.0},
        {"mode": "chain", "role": "mode", "accepted_length": 1.75},
        {"mode": "library", "role": "library", "accepted_length": None},
    ]
    measured = {"rows": rows, "recommendation": {"sentence": "chain"}}
    report = of_weights()
    told = summary(replace(report, sections={**report.sections, "measured": measured}))
    (line,) = (line for line in told if "would be no gain" in line)
    assert line.endswith(": 1.75 with a chain (1.00 would be no gain).")
    assert "chain 1.75" in judge_draft(rows).reason


def test_everything_passed_leaves_nothing_unknown():
    done = Verdict(tuple(ScopeVerdict(scope, "passed", "") for scope in SCOPES))
    assert not any("Not measured" in line for line in summary(replace(of_weights(), verdict=done)))


def test_runs_are_told_one_after_another(compatfix, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    write_report(example(), first)
    write_report(of_weights(), second)
    run = compatfix("report", "summary", str(first), str(second))
    assert run.code == 0
    assert run.out.index("gate of vendor/ddtree_ref against") < run.out.index("gate of t\n")
    assert "gate: green (code passed)" in run.out
    assert compatfix("report", "summary", str(tmp_path / "none")).code == 2
    assert compatfix("report", "summary").code == 2
