"""`cache.crop(n)` with a length raises.

Expected: the cache keeps its first n tokens, as it does up to transformers 5.19 (which warns from 5.15 on).
Observed: ValueError from 5.20 on. Rolling back is what speculative decoding does after every block.
"""

import sys

import torch
import transformers
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()
cache = DynamicCache()
with torch.no_grad():
    model(torch.arange(1, 11)[None], None, None, cache)  # by position: the name of this argument changed in 5.24

try:
    cache.crop(7)
except ValueError as error:
    print(f"FAULT SHOWN: crop(7) of a cache of 10 tokens raised ValueError: {error}")
    sys.exit(1)
print(f"not in this version: crop(7) left {cache.get_seq_length()} of 10 tokens")
sys.exit(0 if cache.get_seq_length() == 7 else 2)
