"""A `crop` that fails leaves the cache torn: some layers are cut, others are not.

Expected: a crop that cannot be done changes nothing, so that the caller can still recover.
Observed: RuntimeError at the first recurrent layer, after the attention layers before it have been cut.
"""

import sys

import torch
import transformers
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1}
linear = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}
types = ["full_attention", "linear_attention"]
config = Qwen3NextConfig(vocab_size=100, num_hidden_layers=2, layer_types=types, **sizes, **heads, **linear)
model = Qwen3NextForCausalLM(config).eval()

with torch.no_grad():
    cache = model(torch.arange(1, 11)[None], use_cache=True).past_key_values
try:
    cache.crop(-4)
except (RuntimeError, AttributeError) as error:
    if cache.get_seq_length() != 10:
        print(f"FAULT SHOWN: crop(-4) raised {type(error).__name__} and left {cache.get_seq_length()} of 10 tokens")
        sys.exit(1)
    print(f"not in this version: crop(-4) raised {type(error).__name__} and left all 10 tokens")
    sys.exit(0)
print(f"not in this version: crop(-4) raised nothing and left {cache.get_seq_length()} of 10 tokens")
