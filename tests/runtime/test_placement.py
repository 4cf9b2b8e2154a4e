"""Nothing assumes one device or one dtype: offloaded and sharded targets, short dtypes, odd parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, dispatch_model

import compatfix.runtime as runtime

from . import away, tiny
from .blocks import DEEP_WITH_SIBLINGS, Session, mask, path_to, positions

COUNT = 12


def offloaded(kind: str, how: str, folder: Path) -> Any:
    """A target whose weights lie elsewhere between its forwards: all in memory, or every other layer on disk."""
    model = tiny.build(kind)
    if how == "cpu":
        return cpu_offload(model, execution_device=torch.device("cpu"))
    places = {f"model.{name}": "cpu" for name, _ in model.model.named_children() if name != "layers"}
    places |= {f"model.layers.{i}": ("cpu", "disk")[i % 2] for i in range(len(model.model.layers))}
    places |= {"lm_head": "disk"}
    return dispatch_model(model, places, main_device="cpu", offload_dir=str(folder), force_hooks=True)


def elsewhere(model: Any) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.device.type == "meta"]


def hooks(model: Any) -> dict[tuple[str, str], Any]:
    names = ("_hf_hook", "_old_forward", "forward")
    return {(at, name): vars(m)[name] for at, m in model.named_modules() for name in names if name in vars(m)}


def speculated(session: Session, truth: Sequence[int]) -> tuple[list[int], set[int]]:
    """Greedy text of a tree with 0, 1 or 2 true tokens a round beside decoys, and how many were accepted at once."""
    text, lengths = [int(session.prefill.logits[0, -1].argmax())], set()
    while len(text) < COUNT:
        right = truth[len(text) :][: len(lengths) % 3]
        ids = [text[-1], *tiny.tokens(3, seed=len(text)), *right]
        parents = [-1, 0, 1, 0, *([0, 4][: len(right)])]
        choices = session.verify(ids, parents).logits[0].argmax(-1).tolist()
        path = [0]
        while following := [n for n in range(len(ids)) if parents[n] == path[-1] and ids[n] == choices[path[-1]]]:
            path.append(following[-1])
        runtime.commit(session.cache, path)
        text += [*(ids[node] for node in path[1:]), choices[path[-1]]]
        lengths.add(len(path))
    return text[:COUNT], lengths


OFFLOADED = [
    ("qwen3", "disk", "mask"),
    ("qwen3_5", "disk", "gated-delta tree"),
    ("qwen3_5", "disk", "mixer levels"),
    ("lfm2", "disk", "conv tree"),
    ("lfm2", "disk", "paths"),
    ("lfm2", "disk", "steps"),
    ("qwen3", "cpu", "mask"),
    ("lfm2", "cpu", "conv tree"),
]


@pytest.mark.parametrize(("kind", "how", "strategy"), OFFLOADED, ids=lambda value: str(value).replace(" ", "-"))
def test_offloaded_targets_are_lossless_and_left_as_found(kind: str, how: str, strategy: str, tmp_path: Path) -> None:
    model = offloaded(kind, how, tmp_path)
    weights, attached = elsewhere(model), hooks(model)
    assert weights and attached
    assert runtime.prepare(model, strategy)["strategy"] == strategy
    session = Session(model, 10, seed=3)
    truth = tiny.greedy(tiny.shared(kind), session.prompt, COUNT)
    text, lengths = speculated(session, truth)
    assert text == truth == tiny.greedy(model, session.prompt, COUNT)
    assert {1, 2, 3} <= lengths
    assert elsewhere(model) == weights
    assert hooks(model) == attached


@pytest.mark.parametrize("how", ["cpu", "disk"])
def test_parts_of_an_offloaded_target(how: str, tmp_path: Path) -> None:
    whole, model = tiny.shared("qwen3_5"), offloaded("qwen3_5", how, tmp_path)
    weights, attached = elsewhere(model), hooks(model)
    ids = tiny.prompt(6)
    with torch.inference_mode():
        assert torch.equal(runtime.input_embeddings(model)(ids), whole.get_input_embeddings()(ids))
        scaled = runtime.input_embeddings(model, SimpleNamespace(input_embedding_scale=3.0))
        assert torch.equal(scaled(ids), whole.get_input_embeddings().weight[ids] * 3)
        hidden = torch.randn(1, 3, tiny.HIDDEN, dtype=torch.float64)
        expected = whole.lm_head(hidden.float())
        torch.testing.assert_close(runtime.draft_logits(model, hidden), expected)
        output = runtime.verify(
            model, ids, past_key_values=runtime.new_cache(model), output_hidden_states=runtime.used_by([1, -1])
        )
        plain = whole(ids, output_hidden_states=True).hidden_states
    assert [index for index, state in enumerate(output.hidden_states) if state is not None] == [1, len(plain) - 1]
    for index in (1, -1):
        torch.testing.assert_close(output.hidden_states[index], plain[index])
    assert elsewhere(model) == weights
    assert hooks(model) == attached


def test_an_exception_leaves_hooks_and_weights_as_found(tmp_path: Path) -> None:
    model = offloaded("lfm2", "disk", tmp_path)
    weights, attached = elsewhere(model), hooks(model)
    session, ids = Session(model), tiny.tokens(11)
    runtime.prepare(model)

    def fail(*_: Any) -> None:
        raise ValueError("planted")

    handle = model.model.embedding_norm.register_forward_pre_hook(fail)
    try:
        with pytest.raises(ValueError, match="planted"):
            session.verify(ids, DEEP_WITH_SIBLINGS, output_hidden_states=runtime.used_by([1]))
    finally:
        handle.remove()
    assert elsewhere(model) == weights
    assert hooks(model) == attached
    session.assert_holds([])


# -- two devices


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with away.second_device(monkeypatch):
        yield


def test_tensors_of_two_devices_do_not_meet(second_device: None) -> None:
    there, here = torch.ones(2, device=away.AWAY), torch.ones(2)
    assert (there + there.sum()).device == away.AWAY
    assert torch.equal((there + here.to(there)).cpu(), torch.tensor([2.0, 2.0]))
    for meeting in (lambda: there + here, lambda: torch.cat([there, here]), lambda: here[there.long()]):
        with pytest.raises(RuntimeError, match="one device"):
            meeting()


SHARDED = [("gemma3", "mask"), ("qwen3_5", "gated-delta tree")]
SHARDED += [("lfm2", strategy) for strategy in ("conv tree", "mixer levels", "paths", "steps")]


@pytest.mark.parametrize(("kind", "strategy"), SHARDED, ids=lambda value: value.replace(" ", "-"))
def test_a_target_on_two_devices_is_lossless(kind: str, strategy: str, second_device: None) -> None:
    model = away.sharded(tiny.build(kind), first_away=1)
    assert runtime.prepare(model, strategy)["strategy"] == strategy
    prompt, ids = tiny.prompt(10), tiny.tokens(11)
    cache = runtime.new_cache(model)
    runtime.verify(model, prompt, past_key_values=cache)
    asked = runtime.used_by(lambda states: torch.cat([runtime.hidden_state(states, index) for index in (2, 1)], dim=-1))
    output = runtime.verify(
        model,
        torch.tensor([ids]),
        position_ids=positions(DEEP_WITH_SIBLINGS, 10),
        attention_mask=mask(DEEP_WITH_SIBLINGS, 10),
        past_key_values=cache,
        output_hidden_states=asked,
    )
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    plain = tiny.shared(kind)(
        torch.tensor([[*prompt[0].tolist(), *(ids[node] for node in path)]]), output_hidden_states=True
    )
    for one, other in (
        (output.logits, plain.logits),
        *zip(output.hidden_states[1:3], plain.hidden_states[1:3], strict=True),
    ):
        assert one.device == away.HERE  # hidden states of sharded layers come to one device
        torch.testing.assert_close(one[0, path], other[0, -len(path) :], rtol=2e-4, atol=2e-4)
    runtime.commit(cache, path[:3])
    kept = tiny.decoded(tiny.shared(kind), prompt, [ids[node] for node in path[:3]])
    ours, theirs = tiny.tensors(cache), tiny.tensors(kept)
    assert {tensor.device for tensor in ours.values()} == {away.HERE, away.AWAY}
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name].cpu(), tensor, rtol=2e-4, atol=2e-4)


def test_all_hidden_states_of_a_sharded_target_are_gathered(second_device: None) -> None:
    model = away.sharded(tiny.build("qwen3"), first_away=1)
    states = model(tiny.prompt(5), output_hidden_states=True).hidden_states
    assert {state.device for state in states} == {away.HERE, away.AWAY}
    joined = torch.cat([runtime.hidden_state(states, index) for index in range(len(states) - 1)], dim=-1)
    assert joined.device == away.HERE


# -- dtypes


def masks_seen(model: Any) -> list[torch.Tensor]:
    """Collects the 4D masks that the model's attention layers are given."""
    seen: list[torch.Tensor] = []

    def remember(module: Any, args: Any, kwargs: Any) -> None:
        given = kwargs.get("attention_mask")
        if isinstance(given, torch.Tensor) and given.ndim == 4:
            seen.append(given)

    for module in model.modules():
        if hasattr(module, "q_proj"):
            module.register_forward_pre_hook(remember, with_kwargs=True)
    return seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.bool, torch.float32])
def test_masks_are_additive_and_of_the_models_dtype(dtype: torch.dtype, given: torch.dtype) -> None:
    model = tiny.build("qwen3", dtype)
    session, ids = Session(model), tiny.tokens(11)
    runtime.prepare(model)
    seen = masks_seen(model)
    with torch.inference_mode():
        runtime.verify(
            model,
            torch.tensor([ids]),
            position_ids=positions(DEEP_WITH_SIBLINGS, session.start),
            attention_mask=mask(DEEP_WITH_SIBLINGS, session.start, given),
            past_key_values=session.cache,
        )
    wanted = mask(DEEP_WITH_SIBLINGS, session.start, dtype)
    assert len(seen) == len(model.model.layers)
    for one in seen:
        assert one.dtype == dtype
        assert torch.equal(one, wanted)


class Quantised(torch.nn.Module):
    """Rows of int8 with a scale each, which computes in the dtype of what it is given, or in that of its scales."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        scale = weight.abs().amax(dim=-1, keepdim=True) / 127
        self.weight = torch.nn.Parameter((weight / scale).round().to(torch.int8), requires_grad=False)
        self.register_buffer("scale", scale.to(dtype))
        self.dtype = dtype

    def rows(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(dtype) * self.scale.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.dtype.is_floating_point:
            return self.rows(self.dtype)[x]
        return x @ self.rows(x.dtype).T


def quantised(dtype: torch.dtype) -> Any:
    """A target whose first parameter, and nearly every other one, is int8; its norms are float32."""
    model = tiny.build("qwen3", dtype)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (torch.nn.Linear, torch.nn.Embedding)):
                setattr(parent, name, Quantised(child.weight.detach().float(), dtype))
            elif "Norm" in type(child).__name__:
                child.float()
                child.register_forward_hook(lambda module, args, output: output.to(args[0].dtype))
    return model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_quantised_targets_with_float32_norms(dtype: torch.dtype) -> None:
    model = quantised(dtype)
    assert next(model.parameters()).dtype == torch.int8
    assert next(p for p in model.parameters() if p.is_floating_point()).dtype == torch.float32
    runtime.prepare(model)
    seen = masks_seen(model)
    session, ids = Session(model), tiny.tokens(11)
    output = session.verify(ids, DEEP_WITH_SIBLINGS, output_hidden_states=runtime.used_by([1]))
    assert {one.dtype for one in seen} == {dtype}
    assert output.hidden_states[1].dtype == dtype
    path = path_to(DEEP_WITH_SIBLINGS, 10)
    plain = tiny.full_logits(model, session.prompt[0].tolist() + [ids[node] for node in path])
    allowed = 64 * torch.finfo(dtype).eps * float(plain.abs().max())
    assert float((output.logits[0, path] - plain[-len(path) :]).abs().max()) <= allowed
    with torch.inference_mode():
        hidden = torch.randn(1, 2, tiny.HIDDEN, dtype=dtype)
        assert runtime.draft_logits(model, hidden).dtype == dtype


# -- waiting


def test_waiting_for_whatever_accelerator_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    runtime.synchronize()  # there is none
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "synchronize", lambda device=None: waited.append(device))
    runtime.synchronize()
    runtime.synchronize("xpu:1")
    runtime.synchronize("cpu")
    assert waited == [None, "xpu:1"]


def test_waiting_for_an_accelerator_that_torch_knows_by_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    made = SimpleNamespace(is_available=lambda: True, synchronize=lambda device=None: waited.append(device))
    monkeypatch.setattr(torch, "accelerator", made)
    runtime.synchronize()
    runtime.synchronize("mtia:0")
    assert waited == [None, torch.device("mtia:0")]
