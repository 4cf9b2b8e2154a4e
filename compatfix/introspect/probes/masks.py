"""Questions about attention masks: whether a tree's shape reaches every layer, and which form is understood."""

from __future__ import annotations

from typing import Any

import torch

from compatfix.introspect.probes.bench import NOISE_FACTOR, PROMPT, Bench, Found, difference, logits_of, probe
from compatfix.introspect.shrink import WINDOW
from compatfix.introspect.skeleton import decoder_layers_path
from compatfix.introspect.words import brief, one_line

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
    failures: list[str] = []
    worst: Found | None = None
    for form, mask in tree_masks(bench):
        try:
            found = _with_mask(bench, form, mask)
        except Exception as error:
            failures.append(f"{form}: {one_line(error)}")
            continue
        if found.ok:
            return found
        worst = worst or found
    if worst is not None:
        return worst
    return Found(f"no form of mask is accepted: {brief(failures[0])}", False, value={"mask": None, "raises": failures})


def _with_mask(bench: Bench, form: str, mask: Any) -> Found:
    leaks, logit_leak = leaks_of(bench, mask)
    kinds = _kinds(bench)
    leaking = {kind: max(leaks[i] for i in range(len(leaks)) if kinds[i] == kind) for kind in dict.fromkeys(kinds)}
    limit = NOISE_FACTOR * max(bench.noise, 1e-7)
    bad = [kind for kind, leak in leaking.items() if leak > limit]
    gap = _path_difference(bench, mask)
    value = {"mask": form, "leak_by_kind": leaking, "leak_by_layer": leaks}
    numbers = {"difference": gap, "sibling": logit_leak, "noise": bench.noise, "fault": bench.other}
    if bad:
        count = sum(leak > limit for leak in leaks)
        text = f"no: it is ignored by {', '.join(bad)} layers ({count} of {len(leaks)}); "
        return Found(text + f"a sibling moves the logits by {logit_leak:.2g}", False, numbers, value)
    ok = bench.judge(max(gap, logit_leak))
    if ok:
        return Found(f"yes, with {form}", True, numbers, value)
    return Found(f"{form} keeps siblings apart, but nodes differ from their paths by {gap:.2g}", ok, numbers, value)


@probe
def bool_mask_is_right(bench: Bench) -> Found:
    """Is a four-dimensional bool mask understood as a float mask is?

    The plain causal mask in both forms, under each attention implementation that the class has.
    """
    outcomes: dict[str, dict[str, float | str]] = {}
    # Within any sliding window, so that one mask is right for every layer.
    size = WINDOW - 2
    causal = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
    before = bench.model.config._attn_implementation
    try:
        for attention in ("sdpa", "eager"):
            outcomes[attention] = {}
            for form, mask in (("bool", causal), ("float", additive(causal, bench.model.dtype))):
                outcomes[attention][form] = _outcome(bench, attention, mask)
    finally:
        set_attention(bench.model, before)
    gaps = [gap for forms in outcomes.values() for gap in [forms["bool"]] if isinstance(gap, float)]
    wrong = [name for name, forms in outcomes.items() if _is_wrong(bench, forms["bool"])]
    float_wrong = [name for name, forms in outcomes.items() if _is_wrong(bench, forms["float"])]
    text = f"no: bool is silently wrong under {' and '.join(wrong)}" if wrong else "yes"
    text += f"; float is wrong under {' and '.join(float_wrong)}" if float_wrong else "; float is right"
    # Published code builds float masks: that bool is wrong is worth knowing and stands in nobody's way.
    ok = False if float_wrong else (None if wrong else True)
    return Found(text, ok, {"difference": max(gaps, default=0.0), "noise": bench.noise}, outcomes)


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


def tree_masks(bench: Bench, kind: str = "float") -> list[tuple[str, Any]]:
    """The small tree's mask in every arrangement that a class may want, as "float" (additive) or "bool" masks."""

    def form(allowed: torch.Tensor) -> torch.Tensor:
        return allowed if kind == "bool" else additive(allowed, bench.model.dtype)

    past = torch.ones(len(PARENTS), PROMPT, dtype=torch.bool)
    allowed = torch.cat([past, ancestors()], dim=1)[None, None]
    one = form(allowed)
    masks: list[tuple[str, Any]] = [(f"one {kind} mask", one)]
    text = bench.model.config.get_text_config()
    types = set(getattr(text, "layer_types", None) or ())
    if len(types) > 1:
        masks.append(("a dict of masks by layer type", dict.fromkeys(types, one)))
    window = getattr(text, "sliding_window", None)
    if isinstance(window, int):
        cut = form(_within_window(allowed, window)[..., -(window - 1 + len(PARENTS)) :])
        by_type = {kind: cut if "sliding" in kind else one for kind in types}
        masks.append(
            ("masks by layer type, cut to the window", by_type) if types else ("a mask cut to the window", cut)
        )
    return masks


def _within_window(allowed: torch.Tensor, window: int) -> torch.Tensor:
    """The same mask without what lies further back than the window, counted in positions and not in columns."""
    columns = torch.tensor([*range(PROMPT), *(PROMPT + depth for depth in DEPTHS)])
    rows = columns[PROMPT:]
    return allowed & (rows[:, None] - columns[None, :] < window)


def _path_difference(bench: Bench, mask: Any) -> float:
    """How far the logits of each leaf's path are from a plain forward over it."""
    return difference(verify_tree(bench, tree_nodes(bench), mask), path_logits(bench))


def path_logits(bench: Bench) -> torch.Tensor:
    """What the nodes' logits are to be: those of a plain forward over each node's root path, (nodes, vocabulary)."""
    ids = tree_nodes(bench)
    rows: dict[int, torch.Tensor] = {}
    for leaf in set(range(len(PARENTS))) - set(PARENTS):
        path = ancestors()[leaf].nonzero().flatten()
        plain = logits_of(bench.forward(torch.cat([bench.prompt, ids[:, path]], dim=1)))[PROMPT:]
        rows |= dict(zip(path.tolist(), plain, strict=True))
    return torch.stack([rows[node] for node in range(len(PARENTS))])


def tree_nodes(bench: Bench) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, len(bench.target.plain_tokens), (1, len(PARENTS)), generator=generator)


def leaks_of(bench: Bench, mask: Any) -> tuple[list[float], float]:
    """The largest change of a blind node's output, for each decoder layer by itself and in the logits of the whole."""
    ids = tree_nodes(bench)
    changed = ids.clone()
    changed[0, CHANGED] = changed[0, CHANGED] % (len(bench.target.plain_tokens) - 1) + 1
    blind = list(BLIND)
    before = _Recorder()
    logits = verify_tree(bench, ids, mask, before)
    after = _Recorder(before, blind)
    verify_tree(bench, changed, mask, after)
    pairs = zip(before.outputs, after.outputs, strict=True)
    leaks = [difference(one[:, blind], two[:, blind]) for one, two in pairs]
    return leaks, difference(logits[blind], verify_tree(bench, changed, mask)[blind])


class _Recorder:
    """Keeps what goes into and comes out of every decoder layer; with `clean` it puts the blind nodes' inputs back."""

    def __init__(self, clean: _Recorder | None = None, blind: list[int] | None = None) -> None:
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self._clean, self._blind = clean, blind

    def enter(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        if self._clean is not None:
            hidden = hidden.clone()
            hidden[:, self._blind] = self._clean.inputs[len(self.inputs)][:, self._blind]
        self.inputs.append(hidden.clone())
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    def leave(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        self.outputs.append((output[0] if isinstance(output, tuple) else output).clone())


def verify_tree(bench: Bench, ids: torch.Tensor, mask: Any, recorder: _Recorder | None = None) -> torch.Tensor:
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
    return logits_of(out)


def _kinds(bench: Bench) -> list[str]:
    text = bench.model.config.get_text_config()
    types = getattr(text, "layer_types", None)
    return list(types) if types else ["full_attention"] * text.num_hidden_layers


def _outcome(bench: Bench, attention: str, mask: torch.Tensor) -> float | str:
    try:
        set_attention(bench.model, attention)
        size = mask.shape[-1]
        logits = logits_of(bench.forward(bench.text[:, :size], attention_mask=mask))
        return difference(logits, bench.plain[:size])
    except Exception as error:
        return one_line(error)


def _is_wrong(bench: Bench, gap: float | str) -> bool:
    return isinstance(gap, float) and bench.judge(gap) is False


def set_attention(model: Any, attention: str) -> None:
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(attention)
        return
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation = attention
