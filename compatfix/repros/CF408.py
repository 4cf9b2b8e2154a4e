"""A sliding-window attention layer that is called without a mask sees past its window.

Expected: a layer made from a config with a window of 4 applies it.
Observed: no exception; under sdpa and eager only a mask does. DFlash drafts call such layers with attention_mask=None.
"""

import sys

import torch
import transformers
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
window = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"]}
config = Qwen3Config(attn_implementation="sdpa", **sizes, **heads, **window)
torch.manual_seed(0)
layer = Qwen3Attention(config, layer_idx=0).eval()
assert layer.sliding_window == 4
one = torch.randn(1, 12, 32)
other = one.clone()
other[0, 0] += 1.0  # 11 places before the last token
angles = Qwen3RotaryEmbedding(config)(one, torch.arange(12)[None])
with torch.no_grad():
    last = [layer(states, position_embeddings=angles, attention_mask=None)[0][0, -1] for states in (one, other)]
moved = (last[0] - last[1]).abs().max().item()
if moved > 1e-5:
    print(f"FAULT SHOWN: a token 11 places back moves the output by {moved:.4f} with a window of 4")
    sys.exit(1)
print("not in this version: the window holds without a mask")
