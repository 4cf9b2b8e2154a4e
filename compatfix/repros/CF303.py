"""A boolean 4D attention mask is added to the scores under eager attention instead of hiding anything.

Expected: a boolean mask (true: visible) gives the logits of the additive mask that says the same, as under sdpa.
Observed: no exception, other logits: true adds 1, false adds 0, and every token sees every token.
"""

import sys

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
visible = torch.ones(10, 10, dtype=torch.bool).tril()[None, None]
additive = torch.zeros(1, 1, 10, 10).masked_fill(~visible, torch.finfo(torch.float32).min)
error = {}
for attention in ("sdpa", "eager"):
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(attn_implementation=attention, **sizes, **heads)).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    with torch.no_grad():
        one, other = (model(torch.arange(1, 11)[None], mask).logits for mask in (visible, additive))
    error[attention] = (one - other).abs().max().item()
if error["eager"] > 1e-3:
    print(f"FAULT SHOWN: logits are {error['eager']:.3f} off under eager, {error['sdpa']:.1e} under sdpa")
    sys.exit(1)
print(f"not in this version: logits agree to {error['eager']:.1e} under eager")
