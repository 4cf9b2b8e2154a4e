"""Chain verification: the draft fills a block, the target keeps its longest correct prefix."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import torch
from model import DFlashDraftModel, cut_after_stop, extract_context_feature, reached_stop, sample
from torch import nn
from transformers import DynamicCache

DFLASH_STAGE_ORDER = ("draft", "verify", "commit")


@torch.inference_mode()
def dflash_generate(
    model: DFlashDraftModel,
    target: nn.Module,
    input_ids: torch.Tensor,
    mask_token_id: int,
    max_new_tokens: int,
    block_size: int,
    stop_token_ids: Sequence[int] | None,
    temperature: float = 0.0,
) -> SimpleNamespace:
    """Generates with a chain of drafted tokens per round.

    `block_size` counts the last committed token and the drafted ones; with 1 nothing is drafted
    and the loop is plain autoregressive decoding, the baseline.

    Args: input_ids (1, T); mask_token_id fills the places that the draft predicts.
    Returns: output_ids (1, T'), counts, times, and one entry per round in acceptance_lengths
    (tokens committed) and round_timestamps (seconds since the prefill ended).
    """
    num_input_tokens = input_ids.shape[1]
    max_length = num_input_tokens + max_new_tokens

    output_ids = torch.full((1, max_length + block_size), mask_token_id, dtype=torch.long, device=model.device)
    output_ids[:, :num_input_tokens] = input_ids
    position_ids = torch.arange(output_ids.shape[1], device=model.device).unsqueeze(0)
    past_key_values_target = DynamicCache()
    past_key_values_draft = DynamicCache()
    stage_times = empty_stage_times(DFLASH_STAGE_ORDER)
    acceptance_lengths: list[int] = []
    round_timestamps: list[float] = []

    prefill_began = cuda_time()
    output = target(
        input_ids,
        position_ids=position_ids[:, :num_input_tokens],
        past_key_values=past_key_values_target,
        use_cache=True,
        logits_to_keep=1,
        output_hidden_states=block_size > 1,
    )
    output_ids[:, num_input_tokens : num_input_tokens + 1] = sample(output.logits, temperature)
    if block_size > 1:
        target_hidden = extract_context_feature(output.hidden_states, model.target_layer_ids)
    decode_began = cuda_time()

    start = num_input_tokens
    while start < max_length:
        draft_began = cuda_time()
        block_ids = output_ids[:, start : start + block_size].clone()
        block_positions = position_ids[:, start : start + block_size]
        if block_size > 1:
            noise_embedding = target.model.embed_tokens(block_ids)
            draft_hidden = model(
                target_hidden=target_hidden,
                noise_embedding=noise_embedding,
                position_ids=position_ids[:, past_key_values_draft.get_seq_length() : start + block_size],
                past_key_values=past_key_values_draft,
                use_cache=True,
                is_causal=False,
            )
            draft_logits = target.lm_head(draft_hidden[:, 1 - block_size :, :])
            past_key_values_draft.crop(start)
            block_ids[:, 1:] = sample(draft_logits)

        verify_began = cuda_time()
        output = target(
            block_ids,
            position_ids=block_positions,
            past_key_values=past_key_values_target,
            use_cache=True,
            output_hidden_states=block_size > 1,
        )
        posterior = sample(output.logits, temperature)

        commit_began = cuda_time()
        matches = (block_ids[:, 1:] == posterior[:, :-1]).long()
        num_accepted = int(matches.cumprod(dim=1).sum())
        num_committed = num_accepted + 1
        output_ids[:, start : start + num_committed] = block_ids[:, :num_committed]
        output_ids[:, start + num_committed] = posterior[:, num_accepted]
        if block_size > 1:
            target_hidden = extract_context_feature(output.hidden_states, model.target_layer_ids)
            target_hidden = target_hidden[:, :num_committed, :]
        previous_start, start = start, start + num_committed
        past_key_values_target.crop(start)

        round_ended = cuda_time()
        stage_times["draft"] += verify_began - draft_began
        stage_times["verify"] += commit_began - verify_began
        stage_times["commit"] += round_ended - commit_began
        acceptance_lengths.append(num_committed)
        round_timestamps.append(round_ended - decode_began)
        if reached_stop(output_ids[:, previous_start : start + 1], stop_token_ids):
            break

    output_ids = output_ids[:, :max_length]
    output_ids = output_ids[:, output_ids[0] != mask_token_id]
    output_ids = cut_after_stop(output_ids, num_input_tokens, stop_token_ids)
    num_output_tokens = output_ids.shape[1] - num_input_tokens
    return SimpleNamespace(
        output_ids=output_ids,
        num_input_tokens=num_input_tokens,
        num_output_tokens=num_output_tokens,
        time_to_first_token=decode_began - prefill_began,
        time_per_output_token=(cuda_time() - decode_began) / max(num_output_tokens, 1),
        acceptance_lengths=acceptance_lengths,
        decode_rounds=len(acceptance_lengths),
        stage_times=stage_times,
        round_timestamps=round_timestamps,
        round_trees=None,
    )


def cuda_time() -> float:
    """Seconds on a clock that runs on only when the accelerator has finished its work."""
    torch.cuda.synchronize()
    return time.perf_counter()


def empty_stage_times(stage_names: Iterable[str]) -> dict[str, float]:
    """A total of zero seconds for every stage, in the order given."""
    return dict.fromkeys(stage_names, 0.0)
