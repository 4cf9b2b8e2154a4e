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


@pytest.mark.parametrize("kind", ["falcon_mamba", "jamba"])
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


def shapes_of(linear: torch.nn.Module, session: Session) -> list[tuple[int, ...]]:
    """Shapes of what a linear layer multiplies during one verify."""
    shapes: list[tuple[int, ...]] = []
    weight = linear.weight

    class Seen(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is torch.nn.functional.linear:
                shapes.append(tuple(args[0].shape[:2]))
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))

    linear.weight = Seen(weight.data)
    session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    linear.weight = weight
    return shapes


def test_projections_of_the_mixers_input_and_to_its_output_run_over_all_nodes_at_once() -> None:
    mixer = target("qwen3_5", "mixer levels").model.layers[0].linear_attn
    assert shapes_of(mixer.in_proj_qkv, Session(target("qwen3_5", "mixer levels"))) == [(1, 11)]
    # The root tells that this is the last layer; the other ten nodes follow together.
    assert shapes_of(mixer.out_proj, Session(target("qwen3_5", "mixer levels"))) == [(1, 1), (10, 1)]


def test_projections_that_need_the_state_run_depth_by_depth() -> None:
    mixer = target("jamba", "mixer levels").model.layers[0].mamba
    depth_by_depth = [(1, 1), (2, 1), (2, 1), (2, 1), (2, 1), (2, 1)]
    assert shapes_of(mixer.x_proj, Session(target("jamba", "mixer levels"))) == depth_by_depth


def test_a_mixer_that_changes_its_way_between_depths_fails_loudly() -> None:
    model = tiny.build("qwen3_5")
    runtime.prepare(model, "mixer levels")
    session, mixer = Session(model), model.model.layers[0].linear_attn
    original, calls = mixer.forward, []

    def forward(*args: object, **kwargs: object) -> torch.Tensor:
        calls.append(1)
        output = original(*args, **kwargs)
        return output if len(calls) == 1 else output * 1

    mixer.forward = forward
    with pytest.raises(runtime.RuntimeRefusal, match="took another way"):
        session.verify(tiny.tokens(11), DEEP_WITH_SIBLINGS)
    mixer.forward = original
    session.assert_holds([])


def test_a_mixer_whose_output_is_no_projection_runs_depth_by_depth() -> None:
    model = tiny.build("qwen3_5")
    mixer = model.model.layers[0].linear_attn
    original = mixer.forward
    mixer.forward = lambda *args, **kwargs: original(*args, **kwargs) * 1
    assert runtime.prepare(model, "mixer levels")["strategy"] == "mixer levels"
    assert len(shapes_of(mixer.out_proj, Session(model))) == 6
