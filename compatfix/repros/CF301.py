"""A tree mask does not reach recurrent layers: siblings see one another.

Expected: with a mask that hides node a from its sibling b, the logits at b do not depend on which token a is.
Observed: no exception; they do. Only the attention layers apply the mask.
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
types = ["linear_attention", "full_attention"]
config = Qwen3NextConfig(vocab_size=100, num_hidden_layers=2, layer_types=types, **sizes, **heads, **linear)
torch.manual_seed(0)
model = Qwen3NextForCausalLM(config).eval()
for name, weight in model.named_parameters():  # at the library's scale of weights a state decays almost at once
    if weight.ndim > 1:
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    elif name.endswith("A_log"):
        torch.nn.init.constant_(weight, -3.0)

mask = torch.zeros(1, 1, 3, 13)  # a prompt of 10 tokens, then root, a, b
mask[0, 0, 0, 11:] = mask[0, 0, 1, 12:] = mask[0, 0, 2, 11] = torch.finfo(torch.float32).min
positions = torch.tensor([[10, 11, 11]])
at_b = []
with torch.no_grad():
    for a in (60, 61):
        output = model(torch.arange(1, 11)[None], use_cache=True)
        at_b.append(model(torch.tensor([[11, a, 70]]), mask, positions, output.past_key_values).logits[0, 2])
expected, observed = at_b
error, scale = (observed - expected).abs().max().item(), expected.std().item()
if error > 0.01 * scale:
    print(f"FAULT SHOWN: a hidden sibling moves the logits by {error:.3f} (their standard deviation is {scale:.3f})")
    sys.exit(1)
print(f"not in this version: siblings agree to {error:.1e}")
