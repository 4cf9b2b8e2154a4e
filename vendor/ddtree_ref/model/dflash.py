"""The DFlash draft: a few Qwen3-style layers that fill a whole block of tokens at once.

Shapes: B batch (1 in generation), C new context tokens, Q block tokens, H hidden size,
L number of target layers read, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Config,
    Qwen3MLP,
    Qwen3PreTrainedModel,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    eager_attention_forward,
    rotate_half,
)

from .utils import (
    build_target_layer_ids,
    cut_after_stop,
    extract_context_feature,
    reached_stop,
    sample,
)


class DFlashDraftModel(Qwen3PreTrainedModel):
    """Predicts the `block_size - 1` tokens behind the last committed one in one forward.

    The config is a Qwen3Config with three more fields: `block_size`, `num_target_layers`, and
    `dflash_config` with `mask_token_id` and, optionally, `target_layer_ids`. The draft has no
    embedding and no head of its own; callers use the target's.
    """

    config_class = Qwen3Config
    _no_split_modules = ["DFlashDecoderLayer"]

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        options = getattr(config, "dflash_config", None) or {}
        self.block_size: int = config.block_size
        self.mask_token_id: int | None = options.get("mask_token_id")
        self.target_layer_ids: list[int] = options.get("target_layer_ids") or build_target_layer_ids(
            config.num_target_layers, config.num_hidden_layers
        )

        context_size = len(self.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(context_size, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(
            DFlashDecoderLayer(config, layer_idx) for layer_idx in range(config.num_hidden_layers)
        )
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.post_init()

    def forward(
        self,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        noise_embedding: torch.Tensor | None = None,
        target_hidden: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        **kwargs,
    ) -> torch.Tensor:
        """Hidden states of the block, ready for the target's head.

        Args: position_ids (B, C + Q), the new context first, then the block; noise_embedding
        (B, Q, H), the target's embeddings of [last token, MASK, MASK, ...]; target_hidden
        (B, C, L * H), features of the tokens committed since the previous call;
        past_key_values, keys and values of all earlier context, extended in place by C + Q.
        Returns: (B, Q, H).
        """
        hidden_states = noise_embedding
        context = self.hidden_norm(self.fc(target_hidden))
        position_embeddings = self.rotary_emb(hidden_states, position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                context,
                position_embeddings,
                attention_mask=attention_mask,
                past_key_values=past_key_values if use_cache else None,
                **kwargs,
            )
        return self.norm(hidden_states)

    @torch.inference_mode()
    def spec_generate(
        self,
        target: nn.Module,
        input_ids: torch.Tensor,
        max_new_tokens: int,
        stop_token_ids: Sequence[int] | None,
        temperature: float = 0.0,
    ) -> torch.Tensor:
        """Generates with this draft and chain verification; the loop without any timing.

        Args: input_ids (1, T). Returns: (1, T') with prompt and new tokens.
        """
        self.eval()
        block_size, mask_token_id = self.block_size, self.mask_token_id
        num_input_tokens = input_ids.shape[1]
        max_length = num_input_tokens + max_new_tokens

        output_ids = torch.full((1, max_length + block_size), mask_token_id, dtype=torch.long, device=self.device)
        output_ids[:, :num_input_tokens] = input_ids
        position_ids = torch.arange(output_ids.shape[1], device=self.device).unsqueeze(0)
        past_key_values_target = DynamicCache()
        past_key_values_draft = DynamicCache()

        output = target(
            input_ids,
            position_ids=position_ids[:, :num_input_tokens],
            past_key_values=past_key_values_target,
            use_cache=True,
            logits_to_keep=1,
            output_hidden_states=True,
        )
        output_ids[:, num_input_tokens : num_input_tokens + 1] = sample(output.logits, temperature)
        target_hidden = extract_context_feature(output.hidden_states, self.target_layer_ids)

        start = num_input_tokens
        while start < max_length:
            block_ids = output_ids[:, start : start + block_size].clone()
            block_positions = position_ids[:, start : start + block_size]

            draft_hidden = self(
                target_hidden=target_hidden,
                noise_embedding=target.model.embed_tokens(block_ids),
                position_ids=position_ids[:, past_key_values_draft.get_seq_length() : start + block_size],
                past_key_values=past_key_values_draft,
                use_cache=True,
                is_causal=False,
            )
            past_key_values_draft.crop(start)
            block_ids[:, 1:] = sample(target.lm_head(draft_hidden[:, 1:]))

            output = target(
                block_ids,
                position_ids=block_positions,
                past_key_values=past_key_values_target,
                use_cache=True,
                output_hidden_states=True,
            )
            posterior = sample(output.logits, temperature)
            matches = (block_ids[:, 1:] == posterior[:, :-1]).long()
            num_accepted = int(matches.cumprod(dim=1).sum())
            num_committed = num_accepted + 1

            output_ids[:, start : start + num_committed] = block_ids[:, :num_committed]
            output_ids[:, start + num_committed] = posterior[:, num_accepted]
            target_hidden = extract_context_feature(output.hidden_states, self.target_layer_ids)
            target_hidden = target_hidden[:, :num_committed]

            previous_start, start = start, start + num_committed
            past_key_values_target.crop(start)
            if reached_stop(output_ids[:, previous_start : start + 1], stop_token_ids):
                break

        output_ids = output_ids[:, :max_length]
        output_ids = output_ids[:, output_ids[0] != mask_token_id]
        return cut_after_stop(output_ids, num_input_tokens, stop_token_ids)


class DFlashDecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each with a residual; only the block is transformed."""

    def __init__(self, config: Qwen3Config, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = DFlashAttention(config, layer_idx)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        context: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **kwargs,
    ) -> torch.Tensor:
        """Args: hidden_states (B, Q, H), context (B, C, H). Returns: (B, Q, H)."""
        normed = self.input_layernorm(hidden_states)
        hidden_states = hidden_states + self.self_attn(normed, context, position_embeddings, **kwargs)
        normed = self.post_attention_layernorm(hidden_states)
        return hidden_states + self.mlp(normed)


class DFlashAttention(nn.Module):
    """Attention of the block over cached context, new context and the whole block.

    The block sees itself in both directions. No mask is built, so a sliding window reaches only
    those attention back ends that take it as an argument.
    """

    def __init__(self, config: Qwen3Config, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.is_causal = False
        is_sliding = config.layer_types[layer_idx] == "sliding_attention"
        self.sliding_window = config.sliding_window if is_sliding else None

        hidden, bias = config.hidden_size, config.attention_bias
        query_size = config.num_attention_heads * self.head_dim
        key_size = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, query_size, bias=bias)
        self.k_proj = nn.Linear(hidden, key_size, bias=bias)
        self.v_proj = nn.Linear(hidden, key_size, bias=bias)
        self.o_proj = nn.Linear(query_size, hidden, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        context: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        cache_position: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """Args: hidden_states (B, Q, H), context (B, C, H), cos and sin (B, C + Q, D).
        Returns: (B, Q, H).
        """
        source = torch.cat([context, hidden_states], dim=1)  # (B, C + Q, H)
        query = self.q_norm(self._heads(self.q_proj(hidden_states))).transpose(1, 2)
        key = self.k_norm(self._heads(self.k_proj(source))).transpose(1, 2)
        value = self._heads(self.v_proj(source)).transpose(1, 2)

        cos, sin = position_embeddings
        query, key = rotate_query_and_key(query, key, cos, sin)
        if past_key_values is not None:
            cache_kwargs = {"sin": sin, "cos": cos, "cache_position": cache_position}
            key, value = past_key_values.update(key, value, self.layer_idx, cache_kwargs)

        attention: Callable = eager_attention_forward
        if self.config._attn_implementation != "eager":
            attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        mixed, _ = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(mixed.flatten(start_dim=2))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        """(B, T, heads * D) -> (B, T, heads, D)."""
        return projected.unflatten(-1, (-1, self.head_dim))


def rotate_query_and_key(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding where the queries are the last positions of the keys.

    Args: query (B, heads, Q, D), key (B, heads, C + Q, D), cos and sin (B, C + Q, D).
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    num_queries = query.shape[-2]
    query_cos, query_sin = cos[..., -num_queries:, :], sin[..., -num_queries:, :]
    query = query * query_cos + rotate_half(query) * query_sin
    key = key * cos + rotate_half(key) * sin
    return query, key
