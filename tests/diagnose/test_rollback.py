"""The repair of the rollback on a hybrid target: the state is mended even where the runtime withholds it meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compatfix.diagnose.plain_text import Trace
from compatfix.diagnose.verification import RolledBack
from compatfix.rewrites import patch_copy
from compatfix.validate.bench import CHAIN, Bench, Mode, build_bench
from compatfix.validate.faults import StateNotRolledBack
from compatfix.validate.oracle import ORACLE
from compatfix.validate.references import make_reference
from compatfix.validate.watch import Tamper, Watch

from .plant import ROOT

TARGETS = ROOT / "examples" / "targets"
TOKENS = 16


class Mended(RolledBack):
    """The fault first, then the repair."""

    def __init__(self, bench: Bench) -> None:
        self._trace = Trace(bench.target)
        self._fault = StateNotRolledBack()

    def before_verify(self, watch: Watch, cache: Any) -> None:
        self._fault.before_verify(watch, cache)
        super().before_verify(watch, cache)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    tree: Path = tmp_path_factory.mktemp("rollback") / "tree"
    patch_copy(ROOT / "vendor" / "ddtree_ref", tree)
    target, draft = str(TARGETS / "qwen3.6-27b"), str(TARGETS / "qwen3.6-27b-dflash")
    return build_bench({"tree": str(tree), "target": target, "draft": draft, "seed": 0})


@pytest.mark.parametrize("mode", [CHAIN, Mode("tree", 8)], ids=lambda mode: mode.name)
def test_a_state_that_was_not_rolled_back_is_mended(bench: Bench, mode: Mode) -> None:
    text = make_reference(bench, 4, TOKENS, with_tree=False)

    def generated(tamper: Tamper | None) -> list[int]:
        run = bench.run(mode, text.prompt, TOKENS, reference=text.tokens, profile=ORACLE, salt=4, tamper=tamper)
        assert run.error is None, run.error
        return run.tokens

    right = text.tokens[:TOKENS]
    assert generated(None) == right
    assert generated(StateNotRolledBack()) != right
    assert generated(Mended(bench)) == right
