"""`target.lm_head(hidden)` is not what the model calls its logits where a scale or a soft-cap follows the head.

Expected: the head applied to the last hidden state gives the model's logits.
Observed: no exception, other values. A draft that goes through the head draws from other probabilities.
"""

import sys

import torch
import transformers
from transformers import Gemma2Config, Gemma2ForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
torch.manual_seed(0)
model = Gemma2ForCausalLM(Gemma2Config(final_logit_softcapping=30.0, **sizes, **heads)).eval()
for weight in model.parameters():
    if weight.ndim > 1:
        torch.nn.init.normal_(weight)

with torch.no_grad():
    output = model(torch.arange(1, 11)[None], output_hidden_states=True)
    difference = (model.lm_head(output.hidden_states[-1]) - output.logits).abs().max().item()
if difference > 1e-3:
    print(f"FAULT SHOWN: lm_head gives values up to {difference:.2f} away from the logits")
    sys.exit(1)
print(f"not in this version: they agree to {difference:.1e}")
