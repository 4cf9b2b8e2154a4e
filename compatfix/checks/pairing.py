"""CF401 to CF409: whether a draft fits a target, as far as configs tell."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.checks.finding import PATCH, found
from compatfix.introspect.draft import default_layer_ids
from compatfix.model import Finding
from compatfix.profiles import DraftProfile, Inspection


def not_a_draft(inspection: Inspection) -> Iterator[Finding]:
    draft = inspection.draft
    if draft is not None and draft.missing:
        message = f"{draft.path} is no DFlash draft: its config has no {', no '.join(draft.missing)}"
        yield found("CF409", message, "read")


def hidden_size_differs(inspection: Inspection) -> Iterator[Finding]:
    target = inspection.target
    for draft in _draft(inspection):
        if draft.hidden_size != target.hidden_size:
            message = f"the draft has hidden size {draft.hidden_size}, the target {target.hidden_size}"
            yield found("CF401", message, "read")


def vocabulary_differs(inspection: Inspection) -> Iterator[Finding]:
    target = inspection.target
    for draft in _draft(inspection):
        if draft.vocab_size != target.vocab_size:
            message = f"the draft has a vocabulary of {draft.vocab_size}, the target of {target.vocab_size}"
            yield found("CF402", message, "read")


def layer_ids_out_of_range(inspection: Inspection) -> Iterator[Finding]:
    depth = inspection.target.num_layers
    for draft in _draft(inspection):
        outside = [i for i in draft.layer_ids if not 0 <= i < depth]
        if outside:
            message = f"target_layer_ids {outside} lie outside the target's {depth} layers"
            yield found("CF403", message, "read")
        elif depth - 1 in draft.layer_ids and inspection.target.value("hidden_states_layout", "last_is_post_norm"):
            message = (
                f"target_layer_ids name the last layer ({depth - 1}), whose hidden state has passed the final norm"
            )
            yield found("CF403", message, "measured", level="warning")


def target_depth_differs(inspection: Inspection) -> Iterator[Finding]:
    depth = inspection.target.num_layers
    for draft in _draft(inspection):
        if draft.num_target_layers is not None and draft.num_target_layers != depth:
            message = f"the draft was made for a target of {draft.num_target_layers} layers; this one has {depth}"
            yield found("CF404", message, "read")


def layer_ids_offset_twice(inspection: Inspection) -> Iterator[Finding]:
    for draft in _draft(inspection):
        depth, count = draft.num_target_layers or inspection.target.num_layers, len(draft.layer_ids)
        if draft.layer_ids_at == "nowhere" or count < 2 or depth < count + 3:
            continue
        expected = default_layer_ids(depth, count)
        if draft.layer_ids == tuple(i + 1 for i in expected):
            message = f"target_layer_ids {list(draft.layer_ids)} are each one more than the usual {list(expected)}"
            yield found("CF405", message, "read")


def mask_token_unusable(inspection: Inspection) -> Iterator[Finding]:
    vocab = inspection.target.vocab_size
    for draft in _draft(inspection):
        if draft.mask_token_id is None:
            yield found("CF406", "the draft's config has no mask_token_id", "read")
        elif not 0 <= draft.mask_token_id < vocab:
            message = f"mask_token_id {draft.mask_token_id} lies outside the target's vocabulary of {vocab}"
            yield found("CF406", message, "read")


def block_size_place(inspection: Inspection) -> Iterator[Finding]:
    for draft in _draft(inspection):
        if draft.block_size_at == "dflash_config":
            message = f"block_size ({draft.block_size}) stands in dflash_config, not at the top of the config"
            yield found("CF407", message, "read", fix=f"pass --block-size {draft.block_size}")
        elif draft.block_size is None:
            yield found("CF407", "the draft's config has no block_size", "read", fix="pass --block-size")


def sliding_windows_unmasked(inspection: Inspection) -> Iterator[Finding]:
    for draft in _draft(inspection):
        if draft.sliding_layers and draft.sliding_window:
            message = (
                f"{draft.sliding_layers} of {draft.num_layers} draft layers have a window of {draft.sliding_window}; "
                "without FlashAttention published code gives them no mask, so past the window acceptance falls"
            )
            yield found("CF408", message, "read", fix=PATCH)


def _draft(inspection: Inspection) -> Iterator[DraftProfile]:
    """The draft, if there is one that can be judged."""
    if inspection.draft is not None and not inspection.draft.missing:
        yield inspection.draft
