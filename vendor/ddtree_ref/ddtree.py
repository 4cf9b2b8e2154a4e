"""Tree verification: the draft's distributions span a tree, the target walks down it.

A tree of N nodes hangs below a root, the last committed token. Wherever nodes are indexed, 0 is
the root and 1..N are the nodes in the order in which they were added, parents before children.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
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
    best paths form a tree, and those of one depth continue those of the depth above. So each
    depth's best are found in turn, in arrays, until a depth has none among the best of all.
    Among equals the shallower comes first, then the child of the likelier parent.

    Args: draft_logits (D, V), one distribution per depth 1..D.
    Returns: node_token_ids (N,) and node_depths (N,) on the CPU, the root left out; parents,
    one per node with the root's -1 first; child_maps, token -> child index for each node, the
    root included; visibility (1 + N, 1 + N) bool, row i true at i and its ancestors; seconds
    spent by step.
    """
    build_subtimes = empty_stage_times(DDTREE_BUILD_STAGE_ORDER)
    clock = time.perf_counter()
    vocab_size = draft_logits.shape[1]
    num_ranks = max(min(budget, vocab_size), 0)
    ranked = torch.log_softmax(draft_logits.float(), dim=-1).topk(num_ranks, dim=-1)
    # Both halves in one transfer: values as they lie in memory, ids in as many bits.
    both = torch.stack([ranked.values.view(torch.int32), ranked.indices.to(torch.int32)]).numpy(force=True)
    log_probs, token_ids = both[0].view(np.float32).astype(np.float64), both[1].astype(np.int64)
    build_subtimes["build_topk"], clock = _lap(clock)

    tokens, depths, above = _likeliest_paths(log_probs, token_ids, num_ranks and budget)
    parents: list[int] = [-1, *above.tolist()]
    child_maps: list[dict[int, int]] = [{} for _ in parents]
    for index, (parent, token_id) in enumerate(zip(parents[1:], tokens.tolist(), strict=True), start=1):
        child_maps[parent][token_id] = index
    build_subtimes["build_heap"], clock = _lap(clock)

    visibility = torch.from_numpy(_ancestors(above))
    build_subtimes["build_visibility"], clock = _lap(clock)

    return torch.from_numpy(tokens), torch.from_numpy(depths), parents, child_maps, visibility, build_subtimes


def _likeliest_paths(
    log_probs: np.ndarray, token_ids: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The likeliest paths, best first, as their last tokens, their depths and their parents.

    Args: log_probs, token_ids (D, K), the K >= 1 likeliest tokens of each depth, best first.
    Returns: three (N,) int64 arrays with N <= budget; a parent is 0 (the root) or 1 + the place
    of an earlier path.
    """
    order, ranks = _contenders(budget)
    order, ranks = order[ranks < log_probs.shape[1]], ranks[ranks < log_probs.shape[1]]
    nothing = np.empty(0, dtype=np.int64)
    likelihoods, tokens, parents = [np.empty(0)], [nothing], [nothing]
    level, begin = np.zeros(1), 0  # the root, and where its level begins among all paths
    best, least = np.empty(0), -np.inf  # the budget's best paths so far, and the last of them
    for depth in range(log_probs.shape[0] if budget > 0 else 0):
        count = np.searchsorted(order, len(level))
        paths = level[order[:count]] + log_probs[depth, ranks[:count]]
        chosen = np.arange(count) if len(best) < budget else (paths > least).nonzero()[0]
        if not len(chosen):
            break
        chosen = chosen[np.argsort(-paths[chosen], kind="stable")[:budget]]
        parents.append(order[chosen] + begin)
        tokens.append(token_ids[depth, ranks[chosen]])
        begin, level = begin + len(level), paths[chosen]
        likelihoods.append(level)
        best = np.sort(np.concatenate([best, level]))[-budget:]
        least = best[0]
    all_likelihoods = np.concatenate(likelihoods)
    kept = np.argsort(-all_likelihoods, kind="stable")[: max(budget, 0)]
    place = np.zeros(1 + len(all_likelihoods), dtype=np.int64)
    place[1 + kept] = 1 + np.arange(len(kept))
    depths = np.repeat(np.arange(len(likelihoods)), [len(found) for found in likelihoods])
    return np.concatenate(tokens)[kept], depths[kept], place[np.concatenate(parents)[kept]]


@lru_cache(maxsize=8)
def _contenders(budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Which continuations of a depth can be among its best `budget`: (parent's place, rank).

    The parent at place i and the token of rank r are outdone, or equalled by an earlier one, by
    every pair with no greater i and no greater r, which are (i + 1)(r + 1) with the pair itself.
    """
    parents, ranks = np.indices((max(budget, 0), max(budget, 0))).reshape(2, -1)
    possible = (parents + 1) * (ranks + 1) <= budget
    return parents[possible], ranks[possible]


def _ancestors(parents: np.ndarray) -> np.ndarray:
    """Who sees whom: (1 + N, 1 + N) bool, from the parents (N,) of the nodes below the root.

    Each pass doubles how many ancestors a node has found.
    """
    above = np.concatenate([[0], parents])
    visible = np.eye(len(above), dtype=bool)
    while above.any():
        visible |= visible[above]
        above = above[above]
    visible[:, 0] = True
    return visible


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
