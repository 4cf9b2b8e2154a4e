"""Small helpers on layer ids, hidden states and tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def build_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> list[int]:
    """Which target layers feed the draft when its config does not name them.

    One draft layer reads the middle of the target; several read layers spread evenly from
    layer 1 to the third layer from the end, one per draft layer.
    """
    if num_draft_layers == 1:
        return [num_target_layers // 2]
    first, last = 1, num_target_layers - 3
    step = (last - first) / (num_draft_layers - 1)
    return [round(first + index * step) for index in range(num_draft_layers)]


def extract_context_feature(hidden_states: Sequence[torch.Tensor], layer_ids: Sequence[int]) -> torch.Tensor:
    """Joins the outputs of the chosen layers on the feature axis.

    Args: hidden_states, one (B, T, H) per entry, entry 0 being the embedding output;
    layer_ids, layers of the target counted from 0.
    Returns: (B, T, len(layer_ids) * H).
    """
    offset = 1
    selected = [hidden_states[layer_id + offset] for layer_id in layer_ids]
    return torch.cat(selected, dim=-1)


def sample(logits: torch.Tensor, temperature: float = 0.0) -> torch.Tensor:
    """One token per position: the most likely one at temperature 0, else a random draw.

    Args: logits (B, T, V). Returns: (B, T) token ids.
    """
    if temperature < 1e-5:
        return logits.argmax(dim=-1)
    batch_size, length, vocab_size = logits.shape
    probabilities = torch.softmax(logits.float().view(-1, vocab_size) / temperature, dim=-1)
    return torch.multinomial(probabilities, num_samples=1).view(batch_size, length)


def cut_after_stop(
    output_ids: torch.Tensor, num_input_tokens: int, stop_token_ids: Sequence[int] | None
) -> torch.Tensor:
    """Drops what follows the first stop token behind the prompt; that token itself stays.

    Args: output_ids (1, T). Returns: (1, T') with T' <= T.
    """
    if not stop_token_ids:
        return output_ids
    stops = torch.tensor(list(stop_token_ids), device=output_ids.device)
    hits = torch.isin(output_ids[0, num_input_tokens:], stops).nonzero()
    if hits.numel() == 0:
        return output_ids
    return output_ids[:, : num_input_tokens + int(hits[0]) + 1]


def reached_stop(tokens: torch.Tensor, stop_token_ids: Sequence[int] | None) -> bool:
    """Whether any of the tokens, of any shape, ends the text."""
    if not stop_token_ids:
        return False
    stops = torch.tensor(list(stop_token_ids), device=tokens.device)
    return bool(torch.isin(tokens, stops).any())
