"""A bare `DynamicCache()` cannot be used with a model that has recurrent layers.

Expected: the cache grows the layers that the model asks for, as it does on attention-only models.
Observed: AttributeError (4.57 to 5.4), ValueError (5.5 to 5.12), IndexError (5.13 and later).
"""

import sys

import torch
import transformers
from transformers import DynamicCache, Qwen3NextConfig, Qwen3NextForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1}
linear = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}
types = ["linear_attention", "full_attention"]
config = Qwen3NextConfig(vocab_size=100, num_hidden_layers=2, layer_types=types, **sizes, **heads, **linear)
model = Qwen3NextForCausalLM(config).eval()
try:
    with torch.no_grad():
        model(torch.arange(1, 11)[None], None, None, DynamicCache())
except (AttributeError, ValueError, IndexError) as error:
    print(f"FAULT SHOWN: a forward on a bare DynamicCache() raised {type(error).__name__}: {error}")
    sys.exit(1)
print("not in this version: the forward ran")
