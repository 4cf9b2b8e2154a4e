"""The last entry of `hidden_states` is not the output of the last layer.

Expected: hidden_states[i + 1] is what layer i put out, for every layer.
Observed: no exception; for the last layer it is what the final norm made of it. Code that reads a layer by its number
is fed something else there.
"""

import sys

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()
outputs = []
for layer in model.model.layers:
    layer.register_forward_hook(lambda module, args, out: outputs.append(out[0] if isinstance(out, tuple) else out))

with torch.no_grad():
    states = model(torch.arange(1, 11)[None], output_hidden_states=True).hidden_states
off = [(states[i + 1] - output).abs().max().item() for i, output in enumerate(outputs)]
if max(off[:-1]) == 0 and off[-1] > 0:
    print(f"FAULT SHOWN: hidden_states[{len(off)}] is {off[-1]:.2f} off the last layer's output, the others are equal")
    sys.exit(1)
print(f"not in this version: differences by layer are {off}")
