"""Questions about attention masks: whether a tree's shape reaches every layer, and in which form a mask is understood."""

from __future__ import annotations

from typing import Any

import torch

from compatfix.introspect.probes.bench import PROMPT, Bench, Found, difference, logits_of, one_line, probe
from compatfix.introspect.skeleton import decoder_layers_path

# A tree of five nodes in topological order: a root with two children, one node below each.
PARENTS = (-1, 0, 0, 1, 2)
DEPTHS = (0, 1, 1, 2, 2)
# The node that is changed, and those that must not notice.
CHANGED, BLIND = 2, (0, 1, 3)


@probe
def tree_mask_reaches_every_layer(bench: Bench) -> Found:
    """Does a tree mask reach every layer?

    Verifies a small tree twice, the second time with another token in one branch. The other branch must not move. Layer
    by layer: every layer is fed the same inputs for the nodes that must not notice, so each one's own leak shows.
    """
    for form, mask in _mask_forms(bench):
        try:
            leaks, logit_leak = _leaks(bench, mask)
        except Exception as error:
            failure = f"{form}: {one_line(error)}"
            continue
        limit = float(max(bench.noise, 1e-7))
        kinds = _kinds(bench)
        leaking = {kind: max(leaks[i] for i in range(len(leaks)) if kinds[i] == kind) for kind in dict.fromkeys(kinds)}
        bad = {kind: leak for kind, leak in leaking.items() if leak > limit * 4}
        value = {"mask": form, "leak_by_kind": leaking, "leak_by_layer": leaks}
        numbers = {"difference": logit_leak, "noise": bench.noise, "fault": bench.other}
        if not bad:
            return Found(f"yes, with {form}", bench.judge(logit_leak), numbers, value)
        layers = [i for i, leak in enumerate(leaks) if leak > limit * 4]
        text = f"no: it is ignored by {', '.join(bad)} layers ({len(layers)} of {len(leaks)}); "
        return Found(text + f"a sibling moves the logits by {logit_leak:.2g}", False, numbers, value)
    return Found(f"no form of mask is accepted; {failure}", False, value={"mask": None})


@probe
def bool_mask_is_right(bench: Bench) -> Found:
    """Is a four-dimensional bool mask understood as a float mask is?

    The plain causal mask in both forms, under each attention implementation that the class has.
    """
    outcomes: dict[str, dict[str, float | str]] = {}
    size = bench.text.shape[1]
    causal = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
    before = bench.model.config._attn_implementation
    try:
        for attention in ("sdpa", "eager"):
            outcomes[attention] = {}
            for form, mask in (("bool", causal), ("float", additive(causal, bench.model.dtype))):
                outcomes[attention][form] = _outcome(bench, attention, mask)
    finally:
        _set_attention(bench.model, before)
    gaps = [gap for forms in outcomes.values() for gap in [forms["bool"]] if isinstance(gap, float)]
    wrong = [name for name, forms in outcomes.items() if _is_wrong(bench, forms["bool"])]
    float_wrong = [name for name, forms in outcomes.items() if _is_wrong(bench, forms["float"])]
    text = f"no: bool is silently wrong under {' and '.join(wrong)}" if wrong else "yes"
    text += f"; float is wrong under {' and '.join(float_wrong)}" if float_wrong else "; float is right"
    return Found(text, not wrong, {"difference": max(gaps, default=0.0), "noise": bench.noise}, outcomes)


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A bool mask as the float mask that is added to the scores."""
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def ancestors() -> torch.Tensor:
    """(nodes, nodes) bool: row i is true at i and at its ancestors."""
    matrix = torch.eye(len(PARENTS), dtype=torch.bool)
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            matrix[node] |= matrix[parent]
    return matrix


def _mask_forms(bench: Bench) -> list[tuple[str, Any]]:
    past = torch.ones(len(PARENTS), PROMPT, dtype=torch.bool)
    allowed = torch.cat([past, ancestors()], dim=1)[None, None]
    one = additive(allowed, bench.model.dtype)
    forms: list[tuple[str, Any]] = [("one float mask", one)]
    types = getattr(bench.model.config.get_text_config(), "layer_types", None)
    if types and len(set(types)) > 1:
        forms.append(("a dict of masks by layer type", dict.fromkeys(types, one)))
    return forms


def _leaks(bench: Bench, mask: Any) -> tuple[list[float], float]:
    """The largest change of a blind node's output, for each decoder layer by itself and in the logits of the whole."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, len(bench.target.plain_tokens), (1, len(PARENTS)), generator=generator)
    changed = ids.clone()
    changed[0, CHANGED] = changed[0, CHANGED] % (len(bench.target.plain_tokens) - 1) + 1
    blind = list(BLIND)
    clean = _verify(bench, ids, mask, _Recorder())
    recorder = _Recorder(clean[1], blind)
    _verify(bench, changed, mask, recorder)
    leaks = [
        difference(one[:, blind], two[:, blind]) for one, two in zip(clean[1].outputs, recorder.outputs, strict=True)
    ]
    whole = _verify(bench, changed, mask, None)[0]
    return leaks, difference(clean[0][blind], whole[blind])


class _Recorder:
    """Keeps what goes into and comes out of every decoder layer; with `clean` it puts the blind nodes' inputs back."""

    def __init__(self, clean: _Recorder | None = None, blind: list[int] | None = None) -> None:
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self._clean, self._blind = clean, blind

    def enter(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]
        if self._clean is not None:
            hidden = hidden.clone()
            hidden[:, self._blind] = self._clean.inputs[len(self.inputs)][:, self._blind]
        self.inputs.append(hidden.clone())
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    def leave(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        self.outputs.append((output[0] if isinstance(output, tuple) else output).clone())


def _verify(bench: Bench, ids: torch.Tensor, mask: Any, recorder: _Recorder | None) -> tuple[torch.Tensor, Any]:
    positions = torch.tensor([[PROMPT + depth for depth in DEPTHS]])
    cache = bench.prefill()
    layers = bench.model.get_submodule(decoder_layers_path(bench.model) or "")
    hooks = []
    if recorder is not None:
        for layer in layers:
            hooks.append(layer.register_forward_pre_hook(recorder.enter, with_kwargs=True))
            hooks.append(layer.register_forward_hook(recorder.leave))
    try:
        out = bench.forward(ids, cache, position_ids=positions, attention_mask=mask)
    finally:
        for hook in hooks:
            hook.remove()
    return logits_of(out), recorder


def _kinds(bench: Bench) -> list[str]:
    text = bench.model.config.get_text_config()
    types = getattr(text, "layer_types", None)
    return list(types) if types else ["full_attention"] * text.num_hidden_layers


def _outcome(bench: Bench, attention: str, mask: torch.Tensor) -> float | str:
    try:
        _set_attention(bench.model, attention)
        return difference(logits_of(bench.forward(bench.text, attention_mask=mask)), bench.plain)
    except Exception as error:
        return one_line(error)


def _is_wrong(bench: Bench, gap: float | str) -> bool:
    return isinstance(gap, float) and bench.judge(gap) is False


def _set_attention(model: Any, attention: str) -> None:
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(attention)
        return
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation = attention
