"""The contract where the target is not alone: hooks, code that goes around a mixer, batches, short dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compatfix.runtime as runtime

from . import blocks, tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, leaves, path_to, target

KINDS = list(tiny.STRATEGIES)
# Strategies that intercept the forward of each mixer.
STATEFUL = [kind for kind in KINDS if "mixer levels" in tiny.STRATEGIES[kind]]
STATEFUL_CASES = [
    (kind, strategy) for kind in STATEFUL for strategy in tiny.STRATEGIES[kind] if strategy not in ("paths", "steps")
]
every_interception = pytest.mark.parametrize(
    ("kind", "strategy"), STATEFUL_CASES, ids=lambda value: value.replace(" ", "-")
)
every_kind = pytest.mark.parametrize("kind", KINDS)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    (layers,) = [list(module) for name, module in model.named_modules() if name.endswith("layers")]
    return layers


def mixers(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """The layers that keep a state, each with the name of its mixer: read from the classes, not from the runtime."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None)
    found = []
    for index, layer in enumerate(decoder_layers(model)):
        for name in ("linear_attn", "conv", "mamba", "mixer", "self_attn"):
            stateful = kinds is None or kinds[index] in ("linear_attention", "conv", "mamba", "hybrid")
            if getattr(layer, name, None) is not None and stateful:
                found.append((layer, name))
                break
    return found


@every_interception
def test_a_mixer_that_is_bypassed_fails_loudly(kind: str, strategy: str) -> None:
    class Direct(nn.Module):
        """As a compiled or fused layer would be: the mixer's forward, without a look at the instance."""

        def __init__(self, mixer: nn.Module) -> None:
            super().__init__()
            self.mixer = mixer

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return type(self.mixer).forward(self.mixer, *args, **kwargs)

    model = tiny.build(kind)
    runtime.prepare(model, strategy)
    session, ids = Session(model), tiny.tokens(11)
    layer, name = mixers(model)[-1]
    mixer = getattr(layer, name)
    setattr(layer, name, Direct(mixer))
    # FalconMamba stumbles over the mask of the tree before it comes to its state.
    with pytest.raises(
        RuntimeError, match="must match the size" if kind == "falcon_mamba" else "uses its state outside"
    ):
        session.verify(ids, DEEP_WITH_SIBLINGS)
    session.assert_holds([])
    setattr(layer, name, mixer)
    session.verify(ids, DEEP_WITH_SIBLINGS)
    runtime.commit(session.cache, [0, 1, 4])
    session.assert_holds([ids[0], ids[1], ids[4]])


@every_kind
def test_hooks_of_accelerate_stay_around_layers_and_mixers(kind: str) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    seen: list[nn.Module] = []

    class Watch(hooks.ModelHook):  # type: ignore[name-defined, misc]
        def pre_forward(self, module: nn.Module, *args: object, **kwargs: object) -> object:
            seen.append(module)
            return args, kwargs

    model = tiny.build(kind)
    hooked = decoder_layers(model)
    if kind in STATEFUL:
        hooked = [*hooked, *(getattr(layer, name) for layer, name in mixers(model))]
    for module in hooked:
        hooks.add_hook_to_module(module, Watch())
    assert runtime.prepare(model)["strategy"] == tiny.STRATEGIES[kind][0]
    session, ids = Session(model), tiny.tokens(11)
    seen.clear()
    session.verify(ids, DEEP_WITH_SIBLINGS)
    assert sorted(map(id, seen)) == sorted(map(id, hooked))  # each once
    runtime.commit(session.cache, [0, 1, 4])
    session.assert_holds([ids[0], ids[1], ids[4]])


@every_kind
def test_a_batch_is_refused_and_nothing_is_changed(kind: str) -> None:
    session = Session(target(kind))
    before = blocks.copied(session.cache)
    with pytest.raises(runtime.RuntimeRefusal, match="a batch of 2"):
        runtime.verify(session.model, torch.ones(2, 3, dtype=torch.long), past_key_values=session.cache)
    after = tiny.tensors(session.cache)
    assert all(torch.equal(before[name], after[name]) for name in before)


@every_kind
def test_in_bfloat16_nodes_and_states_are_as_near_to_plain_decoding_as_it_is_to_itself(kind: str) -> None:
    """The tolerance is measured: four times what plain decoding differs from a prefill of the same tokens."""
    model = tiny.build(kind, torch.bfloat16)
    # Where a fault shows little, rounding may cost the cheapest strategy its place.
    assert runtime.prepare(model)["strategy"] in tiny.STRATEGIES[kind]
    session, ids = Session(model), tiny.tokens(11)
    output = session.verify(ids, DEEP_WITH_SIBLINGS).logits[0].float()
    own, noise, largest = torch.empty_like(output), 0.0, float(output.abs().max())
    for leaf in leaves(DEEP_WITH_SIBLINGS):
        path = path_to(DEEP_WITH_SIBLINGS, leaf)
        tokens = [ids[node] for node in path]
        own[path] = stepped(model, session.prompt, tokens)
        at_once = tiny.full_logits(model, session.prompt[0].tolist() + tokens)[-len(path) :].float()
        noise = max(noise, float((own[path] - at_once).abs().max()))
    rounding = torch.finfo(torch.bfloat16).eps
    assert float((output - own).abs().max()) <= 4 * max(noise, rounding * largest)
    path = path_to(DEEP_WITH_SIBLINGS, 10)[:4]
    runtime.commit(session.cache, path)
    tokens = [ids[node] for node in path]
    decoded = tiny.tensors(tiny.decoded(model, session.prompt, tokens))
    at_once_cache = tiny.tensors(tiny.decoded(model, torch.tensor([session.prompt[0].tolist() + tokens]), []))
    for name, tensor in tiny.tensors(session.cache).items():
        assert tensor.dtype == decoded[name].dtype and tensor.shape == decoded[name].shape
        noise = distance(at_once_cache[name], decoded[name])
        floor = rounding * float(decoded[name].abs().max())
        assert distance(tensor, decoded[name]) <= 4 * max(noise, floor), name


def stepped(model: nn.Module, prompt: Tensor, path: list[int]) -> Tensor:
    """(len(path), vocabulary) logits of plain decoding, float32."""
    made, rows = tiny.own_cache(model), []
    with torch.inference_mode():
        tiny.cached(model, prompt, made)
        for index, token in enumerate(path):
            rows.append(tiny.cached(model, torch.tensor([[token]]), made, prompt.shape[1] + index).logits[0, -1])
    return torch.stack(rows).float()


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max())
