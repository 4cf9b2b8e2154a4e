"""Checks: what in a model, a pair or a machine stands in the way. Torch-free, one file per family.

A check is a small pure function from an Inspection to findings. Add one: write it in the file of its family, list it in
`ALL_CHECKS`, and give it a case in tests/checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compatfix.checks.behaviour import (
    block_drops_state,
    cache_argument_renamed,
    no_exact_strategy,
    probe_failed,
    rollback_is_not_exact,
    short_window_storage,
    tree_mask_ignored,
)
from compatfix.checks.checkpoint import (
    files_unreadable,
    not_matched,
    pickled,
    shapes_differ,
    stored_oddly,
    tensors_missing,
    tensors_surplus,
)
from compatfix.checks.environment import missing_packages
from compatfix.checks.memory import all_hidden_states, does_not_fit
from compatfix.checks.pairing import (
    block_size_place,
    hidden_size_differs,
    layer_ids_offset_twice,
    layer_ids_out_of_range,
    mask_token_unusable,
    not_a_draft,
    sliding_windows_unmasked,
    target_depth_differs,
    vocabulary_differs,
)
from compatfix.checks.quantisation import quantised_target, recurrent_layers_quantised, rotated_basis
from compatfix.checks.structure import (
    embedding_scaled,
    hidden_state_layout,
    logits_transformed,
    wrong_path_in_notes,
)
from compatfix.checks.tokenizer import (
    end_tokens_differ,
    mask_token_is_a_word,
    tokenizer_unreadable,
    tokenizers_differ,
    vocabulary_too_large,
)
from compatfix.model import LEVELS, Finding
from compatfix.profiles import Inspection

Check = Callable[[Inspection], Iterator[Finding]]

ALL_CHECKS: tuple[Check, ...] = (
    missing_packages,
    wrong_path_in_notes,
    embedding_scaled,
    logits_transformed,
    hidden_state_layout,
    rollback_is_not_exact,
    block_drops_state,
    short_window_storage,
    tree_mask_ignored,
    no_exact_strategy,
    cache_argument_renamed,
    probe_failed,
    not_a_draft,
    hidden_size_differs,
    vocabulary_differs,
    layer_ids_out_of_range,
    target_depth_differs,
    layer_ids_offset_twice,
    mask_token_unusable,
    block_size_place,
    sliding_windows_unmasked,
    does_not_fit,
    all_hidden_states,
    files_unreadable,
    tensors_missing,
    shapes_differ,
    tensors_surplus,
    quantised_target,
    rotated_basis,
    recurrent_layers_quantised,
    stored_oddly,
    pickled,
    not_matched,
    vocabulary_too_large,
    mask_token_is_a_word,
    end_tokens_differ,
    tokenizers_differ,
    tokenizer_unreadable,
)


def run_checks(inspection: Inspection) -> tuple[Finding, ...]:
    """Every finding of every check, the gravest first, in the order of codes within a level."""
    findings = [finding for check in ALL_CHECKS for finding in check(inspection)]
    return tuple(sorted(findings, key=lambda finding: (LEVELS.index(finding.level), finding.code)))


__all__ = ["ALL_CHECKS", "Check", "run_checks"]
