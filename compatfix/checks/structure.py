"""CF104 to CF107: paths, scales and the layout of hidden states."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.checks.finding import found
from compatfix.model import Finding
from compatfix.profiles import Inspection

CAPS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier_scale", "lm_head_multiplier")
EMBEDDING_SCALES = ("embedding_multiplier", "embedding_scale", "scale_emb")


def wrong_path_in_notes(inspection: Inspection) -> Iterator[Finding]:
    target = inspection.target
    for path in target.absent_paths:
        real = ", ".join(f"{profile.embedding} ({profile.name})" for profile in target.classes)
        message = f"public notes name {path}; it exists in no class of this model. The embeddings are {real}"
        yield found("CF104", message, "measured", fix="use get_input_embeddings(), which every class has")


def embedding_scaled(inspection: Inspection) -> Iterator[Finding]:
    target = inspection.target
    inside = target.value("embedding_is_raw", "scale")
    outside = target.value("hidden_states_layout", "outside_scale")
    if isinstance(inside, (int, float)) and abs(inside - 1) > 1e-4:
        message = "the embedding module multiplies its rows by a constant"
        yield found("CF105", message, "measured", details={"tiny_scale": inside})
    elif isinstance(outside, (int, float)) and abs(outside - 1) > 1e-4:
        message = "the model multiplies embeddings by a constant outside the embedding module"
        yield found("CF105", message, "measured", details={"tiny_scale": outside})
    else:
        for name in EMBEDDING_SCALES:
            if name in target.transforms:
                message = f"the config scales embeddings: {name} = {target.transforms[name]:g}"
                yield found("CF105", message, "read")


def logits_transformed(inspection: Inspection) -> Iterator[Finding]:
    target = inspection.target
    answer = target.answer("head_gives_logits")
    named = {name: target.transforms[name] for name in CAPS if name in target.transforms}
    if answer is not None and answer.ok is False and answer.error is None:
        message = f"the logits are not the raw output of the head: {answer.text.removeprefix('no: ')}"
        yield found("CF106", message, "measured", details=named)
    elif named:
        listed = ", ".join(f"{name} = {value:g}" for name, value in named.items())
        yield found("CF106", f"the config transforms logits: {listed}", "read", details=named)


def hidden_state_layout(inspection: Inspection) -> Iterator[Finding]:
    answer = inspection.target.answer("hidden_states_layout")
    if answer is not None and answer.ok is False and answer.error is None:
        yield found("CF107", f"hidden states are laid out in another way: {answer.text}", "measured")
