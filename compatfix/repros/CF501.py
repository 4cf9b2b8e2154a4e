"""`Cache.update(keys, values, layer_idx, cache_kwargs)` reads its fourth argument no more.

Expected: cache_kwargs={"cache_position": …} says where a static cache writes, as up to transformers 5.3.
Observed: no exception from 5.4 on; the argument is dropped and the tokens are written somewhere else.
"""

import sys

import torch
import transformers
from transformers import Qwen3Config, StaticCache

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
cache = StaticCache(config=Qwen3Config(**sizes, **heads), max_cache_len=8)
states = torch.ones(1, 1, 2, 16)
try:
    keys, _ = cache.update(states, states, 0, {"cache_position": torch.tensor([3, 4])})
except TypeError as error:
    print(f"FAULT SHOWN: update with cache_kwargs raised TypeError: {error}")
    sys.exit(1)
written = keys[0, 0, :, 0].nonzero().flatten().tolist()
if written != [3, 4]:
    print(f"FAULT SHOWN: cache_position said 3 and 4, the tokens were written to {written}")
    sys.exit(1)
print("not in this version: the tokens were written to 3 and 4")
