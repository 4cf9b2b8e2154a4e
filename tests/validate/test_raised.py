"""Whose layer raised, and when the runtime refused: told from real exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from compatfix.validate.bench import Bench, Mode, build_bench, describe
from tests.validate.conftest import TARGETS

pytestmark = pytest.mark.usefixtures("clean_modules")


def bench(tree: Path) -> Bench:
    target, draft = str(TARGETS / "qwen3-8b"), str(TARGETS / "qwen3-8b-dflash")
    return build_bench({"tree": str(tree), "target": target, "draft": draft, "seed": 0})


def raised_in(tree: Path, file: str, before: str, after: str) -> dict:
    source = (tree / file).read_text()
    assert before in source
    (tree / file).write_text(source.replace(before, after))
    run = bench(tree).run(Mode("chain"), [3, 4, 5], 8, profile=None)
    assert run.error is not None
    return run.error


@pytest.mark.parametrize(
    ("file", "before", "after", "of", "layer"),
    [
        ("draft.py", "cache.crop(-surplus)", "cache.crop('x')", "draft's cache", 0),
        ("speculate.py", "        keep(cache, start, path)\n", "        cache.crop('x')\n", "target's cache", 0),
        # A layer in the tree's own hands, without the cache's frame around it.
        ("draft.py", "cache.crop(-surplus)", "cache.layers[0].crop('x')", "draft's cache", 0),
        ("speculate.py", "start + torch.tensor([depths])", "'x'", None, None),
    ],
)
def test_the_owner_of_the_layer_that_raised_is_named(variant, file, before, after, of, layer):
    error = raised_in(variant(), file, before, after)
    found = error["layer"] or {"of": None, "layer": None}
    assert (found["of"], found["layer"]) == (of, layer), error


def test_a_cache_that_was_never_seen_has_no_owner(variant):
    other = "import copy; copy.deepcopy(cache).crop('x')"
    error = raised_in(variant(), "draft.py", "cache.crop(-surplus)", other)
    assert error["layer"]["of"] is None
    assert error["layer"]["layer"] == 0


def refused_by(module: str) -> dict:
    """What is told of a refusal that was raised in a module of the runtime."""
    refusal = type("RuntimeRefusal", (RuntimeError,), {"__module__": "compatfix_runtime.refusal"})
    space = {"__name__": module, "RuntimeRefusal": refusal}
    exec("def plan_of():\n    raise RuntimeRefusal('no')", space)
    with pytest.raises(RuntimeError) as caught:
        space["plan_of"]()
    return describe(Path("/nowhere"), caught.value)


def test_a_refusal_at_start_up_is_told_from_one_of_a_call():
    chosen, called = refused_by("compatfix_runtime.plans"), refused_by("compatfix_runtime.verification")
    assert (chosen["refused"], chosen["start_up"]) == (True, True)
    assert (called["refused"], called["start_up"]) == (True, False)
