"""Where a wrong generation left plain decoding: on a hybrid target, where the runtime withholds states meanwhile."""

from __future__ import annotations

import pytest

from compatfix.rewrites import patch_copy
from compatfix.validate.bench import CHAIN, Bench, Mode, build_bench
from compatfix.validate.faults import HiddenStateOffset, StaleKeys, StateNotRolledBack
from compatfix.validate.localise import localise
from compatfix.validate.oracle import ORACLE
from compatfix.validate.references import make_reference
from compatfix.validate.watch import Tamper
from tests.validate.conftest import TARGETS

TOKENS = 12


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    tree = tmp_path_factory.mktemp("localise") / "tree"
    patch_copy(TARGETS.parents[1] / "vendor" / "ddtree_ref", tree)
    target, draft = str(TARGETS / "qwen3.6-27b"), str(TARGETS / "qwen3.6-27b-dflash")
    return build_bench({"tree": str(tree), "target": target, "draft": draft, "seed": 0})


def located(bench: Bench, mode: Mode, fault: Tamper):
    text = make_reference(bench, 4, TOKENS, with_tree=False)
    return localise(bench, mode, text.prompt, text.tokens, TOKENS, profile=ORACLE, salt=4, tamper=fault)


@pytest.mark.parametrize("mode", [CHAIN, Mode("tree", 8)], ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("fault", "layer", "kind", "tensors"),
    [
        (StateNotRolledBack, 0, "linear_attention", ("conv_states", "recurrent_states")),
        (StaleKeys, 3, "full_attention", ("keys", "values")),
    ],
)
def test_the_layer_and_the_tensor_are_named(bench, mode, fault, layer, kind, tensors):
    done, state = located(bench, mode, fault())
    assert done and state is not None
    assert (state["layer"], state["kind"]) == (layer, kind)
    assert state["tensor"] in tensors
    assert state["difference"] > 0.1 * state["scale"]


@pytest.mark.parametrize("fault", [Tamper, HiddenStateOffset])
def test_a_cache_that_is_right_is_called_right(bench, fault):
    assert located(bench, Mode("tree", 8), fault()) == (True, None)


def test_a_run_that_breaks_off_locates_nothing(bench):
    class Breaks(Tamper):
        def after_verify(self, watch, forward, output):
            if watch.rounds:
                raise RuntimeError("broken off")

    assert located(bench, CHAIN, Breaks()) == (False, None)
