"""Strategy mixer levels, on mixers that no other one-forward strategy knows: short convs, Mamba 1 and 2."""

from __future__ import annotations

import pytest
import torch

import compatfix.runtime as runtime

from . import tiny
from .blocks import BUSHY, DEEP_WITH_SIBLINGS, Session, leaves, path_to, target


@pytest.mark.parametrize("kind", ["lfm2", "falcon_h1", "jamba"])
@pytest.mark.parametrize("strategy", ["mixer levels", "steps"])
def test_nodes_and_commits_are_exact(kind: str, strategy: str) -> None:
    session, ids = Session(target(kind, strategy)), tiny.tokens(len(BUSHY))
    assert runtime.describe(session.model)["strategy"] == strategy
    output = session.verify(ids, BUSHY)
    for leaf in leaves(BUSHY):
        path = path_to(BUSHY, leaf)
        plain = tiny.full_logits(session.model, session.prompt[0].tolist() + [ids[node] for node in path])
        torch.testing.assert_close(output.logits[0, path], plain[-len(path) :], rtol=2e-4, atol=2e-4)
    runtime.commit(session.cache, path_to(BUSHY, 23)[:3])
    session.assert_holds([ids[node] for node in path_to(BUSHY, 23)[:3]])


@pytest.mark.parametrize("kind", ["falcon_h1", "jamba"])
def test_it_is_chosen_where_no_tree_form_is_known(kind: str) -> None:
    assert runtime.describe(target(kind))["strategy"] == "mixer levels"


def test_it_sees_only_single_tokens() -> None:
    session = Session(target("qwen3_5", "mixer levels"))
    shapes: list[tuple[int, ...]] = []
    handle = session.model.model.layers[0].linear_attn.in_proj_qkv.register_forward_hook(
        lambda _, args, __: shapes.append(tuple(args[0].shape[:2]))
    )
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    handle.remove()
    assert shapes == [(1, 1), (2, 1), (2, 1), (2, 1), (2, 1), (2, 1)]


def test_accelerate_hooks_stay_around_the_mixers() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model = tiny.build("qwen3_5")
    seen: list[str] = []

    class Watch(hooks.ModelHook):  # type: ignore[name-defined, misc]
        def pre_forward(self, module: torch.nn.Module, *args: object, **kwargs: object) -> object:
            seen.append("pre")
            return args, kwargs

    for layer in model.model.layers:
        hooks.add_hook_to_module(layer, Watch())
        if hasattr(layer, "linear_attn"):
            hooks.add_hook_to_module(layer.linear_attn, Watch())
    for strategy in ("gated-delta tree", "mixer levels"):
        runtime.prepare(model, strategy)
        session, ids = Session(model), tiny.tokens(11)
        seen.clear()
        session.verify(ids, DEEP_WITH_SIBLINGS)
        assert len(seen) == 7  # four layers and three mixers, once each
        runtime.commit(session.cache, [0, 1, 4])
        session.assert_holds([ids[0], ids[1], ids[4]])
