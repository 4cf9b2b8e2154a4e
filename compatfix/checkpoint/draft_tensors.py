"""The tensors of a published DFlash draft (arXiv 2602.06036), from its config: what its checkpoint must hold.

Embeddings and head are the target's; drafts that store them all the same, or that have biases, hold more than this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from compatfix.checkpoint.header import StoredTensor
from compatfix.profiles import DraftProfile, TensorMatch

CLASS = "a published DFlash draft"
# Shared with the target, or made at load.
_SHARED = re.compile(r"(^|\.)(embed_tokens\.weight|lm_head\.weight|rotary_emb\.inv_freq)$")
_BIAS = re.compile(r"\.self_attn\.[qkvo]_proj\.bias$")


def expected_tensors(draft: DraftProfile) -> dict[str, tuple[int, ...]]:
    """Names and shapes; layers as Qwen3 has them, `fc` over the features of `len(layer_ids)` layers, two norms."""
    hidden, inner = draft.hidden_size, draft.intermediate_size
    queries, keys = draft.heads * draft.head_dim, draft.kv_heads * draft.head_dim
    found: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(draft.layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(draft.num_layers):
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (draft.head_dim,),
            "self_attn.k_norm": (draft.head_dim,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            found[f"layers.{layer}.{name}.weight"] = shape
    return found


def match_draft(draft: DraftProfile, tensors: Mapping[str, StoredTensor]) -> TensorMatch:
    """Holds a draft's checkpoint against the published shape; a prefix that all names share counts for nothing."""
    wanted = expected_tensors(draft)
    prefix = next((name.removesuffix("fc.weight") for name in tensors if name.endswith("fc.weight")), "")
    stored = {name.removeprefix(prefix): tensor.shape for name, tensor in tensors.items()}
    missing = [name for name in wanted if name not in stored]
    surplus = [name for name in stored if name not in wanted and not _SHARED.search(name) and not _BIAS.search(name)]
    other = [
        (name, str(list(stored[name])), str(list(shape)))
        for name, shape in wanted.items()
        if name in stored and stored[name] != shape
    ]
    shared = tuple(sorted(name for name in stored if _SHARED.search(name)))
    return TensorMatch(CLASS, len(wanted), tuple(missing), tuple(sorted(surplus)), tuple(other), tied_stored=shared)
