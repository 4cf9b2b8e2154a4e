"""A cache that is passed under another version's name for it is swallowed.

Expected: a keyword that a forward does not have is an error.
Observed: no exception; the cache stays empty and every later step is computed without a past. The argument is
`past_key_values` until 5.23 and `cache` from 5.24 on; layers called it `past_key_value` before 5.0.
"""

import sys

import torch
import transformers
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()
swallowed = []
for name in ("past_key_values", "cache", "past_key_value"):
    cache = DynamicCache()
    try:
        with torch.no_grad():
            model(torch.arange(1, 11)[None], use_cache=True, **{name: cache})
    except TypeError:
        continue
    if cache.get_seq_length() == 0:
        swallowed.append(name)
if swallowed:
    print(f"FAULT SHOWN: no exception, and the cache stays empty when passed as {', '.join(swallowed)}")
    sys.exit(1)
print("not in this version: every name is used or refused")
