"""Questions about what a draft takes from the target: hidden states, embeddings, the head."""

from __future__ import annotations

from typing import Any

import torch

from compatfix.introspect.probes.bench import Bench, Found, difference, logits_of, probe
from compatfix.introspect.skeleton import decoder_layers_path, final_norm_path


@probe
def hidden_states_layout(bench: Bench) -> Found:
    """How are hidden states laid out: how many, from where, and has the last passed the final norm?

    Compares the entries with what the embedding and the final norm really gave out during the same forward.
    """
    seen: dict[str, torch.Tensor] = {}
    layers_path = decoder_layers_path(bench.model)
    norm_path = final_norm_path(bench.model, layers_path) if layers_path else None
    modules: dict[str, Any] = {"embedding": bench.model.get_input_embeddings()}
    if layers_path:
        modules["last layer"] = bench.model.get_submodule(layers_path)[-1]
    if norm_path:
        modules["norm"] = bench.model.get_submodule(norm_path)
    hooks = [module.register_forward_hook(_keep(seen, name)) for name, module in modules.items()]
    try:
        out = bench.forward(bench.prompt, output_hidden_states=True)
    finally:
        for hook in hooks:
            hook.remove()
    states = out.hidden_states
    if states is None:
        return Found("output_hidden_states=True gives none", False, value={"count": 0})
    layers = bench.model.config.get_text_config().num_hidden_layers
    holes = sum(state is None for state in states)
    first, last = states[0], states[-1]
    offset = 1 if len(states) == layers + 1 else len(states) - layers
    post_norm = _same(last, seen.get("norm"), bench) and not _same(last, seen.get("last layer"), bench)
    scale = _ratio(first, seen["embedding"])
    value = {
        "count": len(states),
        "layers": layers,
        "holes": holes,
        "offset": offset,
        "first_is_embedding": scale is not None,
        "outside_scale": scale,
        "last_is_post_norm": post_norm,
    }
    standard = len(states) == layers + 1 and not holes
    text = f"{len(states)} for {layers} layers" + (f", {holes} of them None" if holes else "")
    text += "; entry 0 is the embedding output, so layer i is entry i + 1" if standard else ""
    text += "; the last has passed the final norm" if post_norm else "; the last has not passed the final norm"
    return Found(text, standard, value=value)


@probe
def embedding_is_raw(bench: Bench) -> Found:
    """Does the embedding module give the raw rows of its table?

    Compares its output with the rows, and finds the factor where there is one.
    """
    module = bench.model.get_input_embeddings()
    rows = module.weight[bench.prompt]
    scale = _ratio(module(bench.prompt), rows)
    if scale is None:
        return Found("no: its output is no multiple of the rows", False, value={"scale": None})
    raw = abs(scale - 1.0) < 1e-4
    text = "yes" if raw else f"no: it multiplies them by {scale:.6g}"
    return Found(text, raw, {"scale": scale}, {"scale": scale})


@probe
def head_gives_logits(bench: Bench) -> Found:
    """Are the logits what the head makes of the last hidden state?

    Applies the head to the last hidden state, and looks for a factor or a soft-cap where the logits differ.
    """
    out = bench.forward(bench.prompt, output_hidden_states=True)
    head = bench.model.get_output_embeddings()
    if head is None:
        return Found("the class has no output head of its own", None, value={"head": False})
    raw = head(out.hidden_states[-1])[0].float()
    logits = logits_of(out)
    gap = difference(raw, logits)
    if bench.judge(gap):
        return Found("yes", True, {"difference": gap, "noise": bench.noise}, {"scale": 1.0, "capped": False})
    scale = _ratio(logits, raw)
    order = bool((raw.argmax(-1) == logits.argmax(-1)).all())
    if scale is not None:
        text = f"no: they are multiplied by {scale:.6g} after the head"
    elif order and float(logits.abs().max()) <= float(raw.abs().max()):
        text = "no: they are capped after the head; the order of tokens is the same"
    else:
        text = f"no: they differ by {gap:.2g}"
    return Found(text, False, {"difference": gap, "noise": bench.noise}, {"scale": scale, "capped": scale is None})


def _keep(seen: dict[str, torch.Tensor], name: str) -> Any:
    def hook(module: Any, args: Any, output: Any) -> None:
        # A norm may be shared by other calls; the last one of a forward is the one that counts.
        seen[name] = output[0] if isinstance(output, tuple) else output

    return hook


def _same(one: torch.Tensor | None, two: torch.Tensor | None, bench: Bench) -> bool:
    if one is None or two is None or one.shape != two.shape:
        return False
    return difference(one, two) <= 1e-4 * max(1e-6, float(two.abs().max()))


def _ratio(one: torch.Tensor, two: torch.Tensor) -> float | None:
    """The factor between two tensors; None where there is no single one."""
    flat_one, flat_two = one.float().flatten(), two.float().flatten()
    if flat_one.shape != flat_two.shape:
        return None
    factor = float(flat_one @ flat_two / (flat_two @ flat_two))
    spread = difference(flat_one, factor * flat_two)
    return round(factor, 6) if spread <= 2e-5 * float(flat_one.abs().max()) else None
