"""All rules, one file each, in the order of their codes."""

from __future__ import annotations

from compatfix.rewrites.rule import Rule
from compatfix.rewrites.rules.absolute_crop import AbsoluteCrop
from compatfix.rewrites.rules.all_hidden_states import AllHiddenStates
from compatfix.rewrites.rules.attention_only_compaction import AttentionOnlyCompaction
from compatfix.rewrites.rules.bare_dynamic_cache import BareDynamicCache
from compatfix.rewrites.rules.cache_update_kwargs import CacheUpdateKwargs
from compatfix.rewrites.rules.cuda_synchronize import CudaSynchronize
from compatfix.rewrites.rules.draft_sliding_windows import DraftSlidingWindows
from compatfix.rewrites.rules.embedding_path import EmbeddingPath
from compatfix.rewrites.rules.flash_attention_by_name import FlashAttentionByName
from compatfix.rewrites.rules.head_path import HeadPath
from compatfix.rewrites.rules.hidden_state_index import HiddenStateIndex
from compatfix.rewrites.rules.mask_token_filter import MaskTokenFilter
from compatfix.rewrites.rules.single_device_buffers import SingleDeviceBuffers
from compatfix.rewrites.rules.unverified_forward import UnverifiedForward

RULES: tuple[type[Rule], ...] = (
    EmbeddingPath,
    HeadPath,
    HiddenStateIndex,
    BareDynamicCache,
    UnverifiedForward,
    AbsoluteCrop,
    AttentionOnlyCompaction,
    DraftSlidingWindows,
    CacheUpdateKwargs,
    CudaSynchronize,
    FlashAttentionByName,
    SingleDeviceBuffers,
    AllHiddenStates,
    MaskTokenFilter,
)
