"""Verification strategies in the order of their cost; the first that agrees with plain decoding is used."""

from __future__ import annotations

from .base import Block, Facts, Record, StateRecord, Strategy
from .cca import CcaTree
from .conv_tree import ConvTree
from .gated_delta import GatedDelta
from .kimi_delta import KimiDelta
from .lightning import LightningTree
from .mamba2 import Mamba2Tree
from .mask import Mask
from .mixed import MixedTree
from .mixer_levels import MixerLevels
from .paths import Paths
from .steps import Steps

STRATEGIES: tuple[Strategy, ...] = (
    Mask(),
    GatedDelta(),
    KimiDelta(),
    Mamba2Tree(),
    LightningTree(),
    ConvTree(),
    CcaTree(),
    MixedTree(),
    MixerLevels(),
    Paths(),
    Steps(),
)

__all__ = ["STRATEGIES", "Block", "Facts", "Record", "StateRecord", "Steps", "Strategy"]
