"""What an inspection says of published code is not said of a tree that takes care of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compatfix.answered import unanswered
from compatfix.model import Finding

WINDOWS = Finding("CF408", "warning", "read", "4 of 5 draft layers have a window")
STATES = Finding("CF611", "note", "read", "hidden states of every layer")
OTHER = Finding("CF002", "warning", "measured", "slow kernels")


def tree(root: Path, source: str) -> Path:
    (root / "loop.py").write_text(source)
    runtime = root / "compatfix_runtime"
    runtime.mkdir()
    (runtime / "draft.py").write_text("draft_forward(draft)\nused_by(consumer)\n")
    return root


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("hidden = draft(noise)\n", ["CF408", "CF611", "CF002"]),
        ("hidden = draft_forward(draft, noise)\n", ["CF611", "CF002"]),
        ("verify(target, output_hidden_states=used_by(f))\n", ["CF408", "CF002"]),
        ("my_draft_forward(x)\nunused_by(y)\n", ["CF408", "CF611", "CF002"]),
    ],
)
def test_calls_of_the_runtime_answer_their_code(tmp_path: Path, source: str, left: list[str]) -> None:
    found = unanswered(tree(tmp_path, source), (WINDOWS, STATES, OTHER))
    assert [finding.code for finding in found] == left
