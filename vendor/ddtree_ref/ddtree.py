"""Tree verification: the draft's distributions span a tree, the target walks down it.

A tree of N nodes hangs below a root, the last committed token. Wherever nodes are indexed, 0 is
the root and 1..N are the nodes in the order in which they were added, parents before children.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace

import torch
from dflash import cuda_time, dflash_generate, empty_stage_times
from model import DFlashDraftModel, cut_after_stop, extract_context_feature, reached_stop, sample
from torch import nn
from transformers import DynamicCache

DDTREE_BUILD_STAGE_ORDER = ("build_topk", "build_heap", "build_visibility")
DDTREE_STAGE_ORDER = (
    "draft",
    "build",
    *DDTREE_BUILD_STAGE_ORDER,
    "compile",
    "verify",
    "commit",
)


@torch.inference_mode()
def ddtree_generate(
    model: DFlashDraftModel,
    target: nn.Module,
    input_ids: torch.Tensor,
    mask_token_id: int,
    max_new_tokens: int,
    block_size: int,
    stop_token_ids: Sequence[int] | None,
    temperature: float = 0.0,
    tree_budget: int | None = None,
    save_tree_traces: bool = False,
) -> SimpleNamespace:
    """Generates with a tree of drafted tokens per round.

    `tree_budget` bounds the nodes below the root (default `block_size - 1`); `block_size` bounds
    their depth. With a block size of 1 nothing can be drafted and decoding is plain.

    Args: input_ids (1, T); mask_token_id fills the places that the draft predicts.
    Returns: what `dflash_generate` returns; with `save_tree_traces`, round_trees holds one dict
    per round with the tree, the nodes accepted and the token that follows them.
    """
    if block_size <= 1:
        return dflash_generate(
            model,
            target,
            input_ids,
            mask_token_id,
            max_new_tokens,
            block_size,
            stop_token_ids,
            temperature,
        )
    if tree_budget is None:
        tree_budget = block_size - 1
    num_input_tokens = input_ids.shape[1]
    max_length = num_input_tokens + max_new_tokens

    output_ids = torch.full((1, max_length + block_size), mask_token_id, dtype=torch.long, device=model.device)
    output_ids[:, :num_input_tokens] = input_ids
    position_ids = torch.arange(output_ids.shape[1], device=model.device).unsqueeze(0)
    max_nodes = 1 + tree_budget
    verify_ids_buffer = torch.empty((1, max_nodes), dtype=torch.long, device=model.device)
    verify_positions_buffer = torch.empty((1, max_nodes), dtype=torch.long, device=model.device)
    attention_mask_buffer = torch.zeros(
        (1, 1, max_nodes, max_length + max_nodes), dtype=target.dtype, device=model.device
    )
    previous_tree_start, previous_tree_length = 0, 0
    past_key_values_target = DynamicCache()
    past_key_values_draft = DynamicCache()
    stage_times = empty_stage_times(DDTREE_STAGE_ORDER)
    acceptance_lengths: list[int] = []
    round_timestamps: list[float] = []
    round_trees: list[dict] | None = [] if save_tree_traces else None

    prefill_began = cuda_time()
    output = target(
        input_ids,
        position_ids=position_ids[:, :num_input_tokens],
        past_key_values=past_key_values_target,
        use_cache=True,
        logits_to_keep=1,
        output_hidden_states=True,
    )
    output_ids[:, num_input_tokens : num_input_tokens + 1] = sample(output.logits, temperature)
    target_hidden = extract_context_feature(output.hidden_states, model.target_layer_ids)
    decode_began = cuda_time()

    start = num_input_tokens
    while start < max_length:
        draft_began = cuda_time()
        block_ids = output_ids[:, start : start + block_size]
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

        build_began = cuda_time()
        node_token_ids, node_depths, parents, child_maps, visibility, build_subtimes = build_ddtree_tree(
            draft_logits[0], tree_budget
        )

        compile_began = cuda_time()
        verify_ids, verify_positions, attention_mask, previous_tree_start, previous_tree_length = compile_ddtree_tree(
            block_ids[:, 0],
            start,
            node_token_ids,
            node_depths,
            visibility,
            verify_ids_buffer,
            verify_positions_buffer,
            attention_mask_buffer,
            previous_tree_start,
            previous_tree_length,
        )

        verify_began = cuda_time()
        output = target(
            verify_ids,
            position_ids=verify_positions,
            attention_mask=attention_mask,
            past_key_values=past_key_values_target,
            use_cache=True,
            output_hidden_states=True,
        )
        posterior = sample(output.logits, temperature)

        commit_began = cuda_time()
        accepted_indices, next_token = follow_verified_tree(child_maps, posterior)
        accepted = torch.tensor(accepted_indices, dtype=torch.long, device=model.device)
        num_committed = len(accepted_indices)
        output_ids[:, start : start + num_committed] = verify_ids.index_select(1, accepted)
        output_ids[:, start + num_committed] = next_token
        compact_dynamic_cache(past_key_values_target, start, accepted)
        target_hidden = extract_context_feature(output.hidden_states, model.target_layer_ids)
        target_hidden = target_hidden.index_select(1, accepted)
        previous_start, start = start, start + num_committed

        round_ended = cuda_time()
        stage_times["draft"] += build_began - draft_began
        stage_times["build"] += compile_began - build_began
        stage_times["compile"] += verify_began - compile_began
        stage_times["verify"] += commit_began - verify_began
        stage_times["commit"] += round_ended - commit_began
        for name, seconds in build_subtimes.items():
            stage_times[name] += seconds
        acceptance_lengths.append(num_committed)
        round_timestamps.append(round_ended - decode_began)
        if round_trees is not None:
            round_trees.append(
                {
                    "start": previous_start,
                    "node_token_ids": node_token_ids.tolist(),
                    "node_depths": node_depths.tolist(),
                    "parents": parents,
                    "accepted_indices": accepted_indices,
                    "next_token": next_token,
                }
            )
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
        round_trees=round_trees,
    )


def build_ddtree_tree(
    draft_logits: torch.Tensor, budget: int
) -> tuple[torch.Tensor, torch.Tensor, list[int], list[dict[int, int]], torch.Tensor, dict[str, float]]:
    """The `budget` most likely paths below the root, under independent positions.

    The likelihood of a path is the product of its tokens' probabilities, each under the
    distribution of its own depth. Prefixes of a path are at least as likely as the path, so the
    best paths form a tree. A heap yields them in order: what can come next after a node is its
    next sibling or its first child, and neither is more likely than the node itself.

    Args: draft_logits (D, V), one distribution per depth 1..D.
    Returns: node_token_ids (N,) and node_depths (N,) on the CPU, the root left out; parents,
    one per node with the root's -1 first; child_maps, token -> child index for each node, the
    root included; visibility (1 + N, 1 + N) bool, row i true at i and its ancestors; seconds
    spent by step.
    """
    build_subtimes = empty_stage_times(DDTREE_BUILD_STAGE_ORDER)
    clock = time.perf_counter()
    max_depth, vocab_size = draft_logits.shape
    num_ranks = max(min(budget, vocab_size), 0)
    ranked = torch.log_softmax(draft_logits.float(), dim=-1).topk(num_ranks, dim=-1)
    log_probs: list[list[float]] = ranked.values.tolist()
    token_ids: list[list[int]] = ranked.indices.tolist()
    build_subtimes["build_topk"], clock = _lap(clock)

    node_token_ids: list[int] = []
    node_depths: list[int] = []
    parents = [-1]
    child_maps: list[dict[int, int]] = [{}]
    path_log_probs = [0.0]
    order = count()  # equal likelihoods: first pushed, first out
    heap: list[tuple[float, int, int, int, int]] = []

    def push(parent: int, depth: int, rank: int) -> None:
        if depth <= max_depth and rank < num_ranks:
            path_log_prob = path_log_probs[parent] + log_probs[depth - 1][rank]
            heapq.heappush(heap, (-path_log_prob, next(order), parent, depth, rank))

    push(0, 1, 0)
    while heap and len(node_token_ids) < budget:
        negative_log_prob, _, parent, depth, rank = heapq.heappop(heap)
        index = len(parents)
        token_id = token_ids[depth - 1][rank]
        node_token_ids.append(token_id)
        node_depths.append(depth)
        parents.append(parent)
        child_maps.append({})
        child_maps[parent][token_id] = index
        path_log_probs.append(-negative_log_prob)
        push(parent, depth, rank + 1)
        push(index, depth + 1, 0)
    build_subtimes["build_heap"], clock = _lap(clock)

    visibility = torch.eye(len(parents), dtype=torch.bool)
    for index, parent in enumerate(parents[1:], start=1):
        visibility[index] |= visibility[parent]
    build_subtimes["build_visibility"], clock = _lap(clock)

    return (
        torch.tensor(node_token_ids, dtype=torch.long),
        torch.tensor(node_depths, dtype=torch.long),
        parents,
        child_maps,
        visibility,
        build_subtimes,
    )


def _lap(since: float) -> tuple[float, float]:
    """Seconds passed since then, and the time now."""
    now = time.perf_counter()
    return now - since, now


def compile_ddtree_tree(
    root_token_id: torch.Tensor,
    past_length: int,
    node_token_ids: torch.Tensor,
    node_depths: torch.Tensor,
    visibility: torch.Tensor,
    input_ids_buffer: torch.Tensor,
    position_ids_buffer: torch.Tensor,
    attention_mask_buffer: torch.Tensor,
    previous_tree_start: int,
    previous_tree_length: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
    """Writes the tree into the buffers and returns the inputs of its verification.

    The mask buffer is zero (visible) wherever no tree has been written. The columns of a new
    tree overlap those of the one before, part of which is past by now, so these are cleared
    first; the caller hands back the two numbers that say where they are.

    Args: root_token_id (1,); node_token_ids, node_depths (N,) and visibility (1 + N, 1 + N) from
    `build_ddtree_tree`; buffers for ids and positions (1, M) and for the mask (1, 1, M, K), with
    M >= 1 + N and K >= past_length + 1 + N.
    Returns: input_ids and position_ids (1, 1 + N), additive attention_mask
    (1, 1, 1 + N, past_length + 1 + N), all views of the buffers; previous_tree_start and
    previous_tree_length for the next call.
    """
    length = visibility.shape[0]
    end = past_length + length
    device = input_ids_buffer.device

    input_ids = input_ids_buffer[:, :length]
    input_ids[:, 0] = root_token_id
    input_ids[:, 1:] = node_token_ids.to(device)
    position_ids = position_ids_buffer[:, :length]
    position_ids[:, 0] = past_length
    position_ids[:, 1:] = node_depths.to(device) + past_length

    previous_tree_end = previous_tree_start + previous_tree_length
    attention_mask_buffer[..., previous_tree_start:previous_tree_end] = 0
    hidden = torch.finfo(attention_mask_buffer.dtype).min
    attention_mask_buffer[0, 0, :length, past_length:end].masked_fill_(~visibility.to(device), hidden)
    attention_mask = attention_mask_buffer[:, :, :length, :end]
    return input_ids, position_ids, attention_mask, past_length, length


def follow_verified_tree(child_maps: list[dict[int, int]], posterior: torch.Tensor) -> tuple[list[int], int]:
    """Walks from the root for as long as the target's token is one of the node's children.

    Args: child_maps from `build_ddtree_tree`; posterior (1, 1 + N), the target's token behind
    each node.
    Returns: the nodes walked, the root first, and the target's token behind the last of them.
    """
    next_tokens: list[int] = posterior[0].tolist()
    accepted_indices: list[int] = []
    node: int | None = 0
    while node is not None:
        accepted_indices.append(node)
        next_token = next_tokens[node]
        node = child_maps[node].get(next_token)
    return accepted_indices, next_token


def compact_dynamic_cache(
    past_key_values: DynamicCache,
    past_length: int,
    keep_current_indices: Sequence[int] | torch.Tensor,
) -> None:
    """Keeps the past and, behind it, only the chosen tokens of the latest forward, in place.

    Args: past_key_values with (B, heads, past_length + 1 + N, D) per layer;
    keep_current_indices, indices among the last 1 + N tokens in the order wanted.
    """
    keep = torch.as_tensor(keep_current_indices, dtype=torch.long)
    if hasattr(past_key_values, "key_cache"):
        for tensors in (past_key_values.key_cache, past_key_values.value_cache):
            for layer_idx, tensor in enumerate(tensors):
                tensors[layer_idx] = _keep_tokens(tensor, past_length, keep)
        return
    for layer in past_key_values.layers:
        if getattr(layer, "keys", None) is None:
            continue
        layer.keys = _keep_tokens(layer.keys, past_length, keep)
        layer.values = _keep_tokens(layer.values, past_length, keep)


def _keep_tokens(states: torch.Tensor, past_length: int, keep: torch.Tensor) -> torch.Tensor:
    """Moves the kept tokens to the end of the past and returns the view that ends with them.

    Args: states (B, heads, T, D), keep (K,). Returns: (B, heads, past_length + K, D).
    """
    end = past_length + keep.numel()
    kept = states[..., past_length:, :].index_select(-2, keep.to(states.device))
    states[..., past_length:end, :] = kept
    return states[..., :end, :]
