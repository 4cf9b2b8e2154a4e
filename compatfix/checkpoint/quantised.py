"""Which tensors of a quantised checkpoint stand for which plain weights, by the names that each format stores.

Formats and their names: compressed-tensors (weight_packed, weight_scale, …), AutoGPTQ and AutoAWQ (qweight, qzeros,
scales, g_idx), bitsandbytes (absmax, quant_map, quant_state), block-wise fp8 (weight_scale_inv), ModelOpt nvfp4
(weight_scale_2, input_scale).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from compatfix.checkpoint.header import StoredTensor

# The tensor that holds the weight in another form, and what comes with it.
PACKED = re.compile(r"\.(qweight|weight_packed|weight_blocks|_blocks)$|_blocks$")
COMPANION = re.compile(
    r"\.(qzeros|scales|g_idx|weight_scale|weight_scale_inv|weight_scale_2|weight_shape|weight_zero_point|weight_g_idx"
    r"|weight_global_scale|input_scale|input_zero_point|input_global_scale|output_scale|k_scale|v_scale|SCB|absmax"
    r"|nested_absmax|quant_map|nested_quant_map|weight_scales|activation_scale)$"
    r"|\.weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+|\w*scale\w*)$|_scales$"
)
# Stored in these, a weight is quantised even under its plain name.
NARROW = ("F8_E4M3", "F8_E5M2", "I8", "U8", "F4", "I32")


def plain_names(tensors: Mapping[str, StoredTensor]) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Shapes by the names that a plain checkpoint would have, and which of those are packed: their shapes say nothing.

    Tensors that only accompany a packed one are left out.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    packed = set()
    for name, tensor in tensors.items():
        if COMPANION.search(name):
            continue
        plain = name
        if PACKED.search(name):
            plain = re.sub(r"\.(qweight|weight_packed|weight_blocks)$", ".weight", name)
            plain = plain.removesuffix("_blocks")
        if plain != name or (tensor.dtype in NARROW and name.endswith(".weight")):
            packed.add(plain)
        shapes[plain] = tensor.shape
    return shapes, frozenset(packed)
