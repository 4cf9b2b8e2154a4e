"""A cache made from the config cannot be rolled back once a sliding window is full.

Expected: a rejected block can be taken back, as on full-attention layers.
Observed: ValueError (up to 5.14) or RuntimeError (5.15 and later): the tokens before the window are gone.
"""

import sys

import torch
import transformers
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "sliding_window": 8}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
types = ["sliding_attention", "full_attention"]
model = Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=100, layer_types=types, **sizes, **heads)).eval()

cache = DynamicCache(config=model.config)
with torch.no_grad():
    model(torch.arange(1, 21)[None], None, None, cache)  # by position: the name of this argument changed in 5.24
try:
    cache.crop(-4)
except (ValueError, RuntimeError) as error:
    print(f"FAULT SHOWN: crop(-4) of 20 tokens with a window of 8 raised {type(error).__name__}: {error}")
    sys.exit(1)
print(f"not in this version: crop(-4) left {cache.get_seq_length()} of 20 tokens")
