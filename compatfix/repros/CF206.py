"""Keeping the accepted tokens in the keys and values leaves recurrent layers at the last token of the block.

Expected: after a block of 2 tokens of which 1 is kept, the next token has the logits that it has after that one token.
Observed: no exception, other logits. Recurrent layers have no keys to pick from; their state holds both tokens.
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

prompt, block, token = torch.arange(1, 11)[None], torch.tensor([[11, 60]]), torch.tensor([[12]])
with torch.no_grad():
    expected = model(torch.cat([prompt, block[:, :1], token], dim=1)).logits[0, -1]
    output = model(prompt, use_cache=True)
    cache = output.past_key_values
    if not hasattr(cache, "layers"):
        print("cannot tell: this version keeps keys elsewhere")
        sys.exit(2)
    model(block, None, None, cache)  # by position: the name of this argument changed in 5.24
    for layer in cache.layers:
        if torch.is_tensor(getattr(layer, "keys", None)):
            layer.keys, layer.values = layer.keys[:, :, :11], layer.values[:, :, :11]
    observed = model(token, None, None, cache).logits[0, -1]
error, scale = (observed - expected).abs().max().item(), expected.std().item()
if error > 0.01 * scale:
    print(f"FAULT SHOWN: keys cut to 11 tokens, logits are {error:.3f} off (their standard deviation is {scale:.3f})")
    sys.exit(1)
print(f"not in this version: logits agree to {error:.1e}")
