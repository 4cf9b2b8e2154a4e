"""One 4D mask for all layers takes the windows off sliding-window layers.

Expected: a causal 4D mask gives the logits of a forward without a mask, on any model.
Observed: no exception, other logits past the window: sliding layers use the mask as it is. They need a dict of masks by
layer type.
"""

import sys

import torch
import transformers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "sliding_window": 8}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16}
types = ["sliding_attention", "full_attention"]
torch.manual_seed(0)
model = Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=100, layer_types=types, **sizes, **heads)).eval()
for weight in model.parameters():
    if weight.ndim > 1:
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

ids, smallest = torch.arange(1, 21)[None], torch.finfo(torch.float32).min
mask = torch.full((1, 1, 20, 20), smallest).triu(1)
with torch.no_grad():
    expected, observed = model(ids).logits[0], model(ids, mask).logits[0]
inside, past = ((observed - expected)[part].abs().max().item() for part in (slice(0, 8), slice(8, None)))
if past > 1e-3:
    print(f"FAULT SHOWN: past the window logits are {past:.3f} off, inside it {inside:.1e}")
    sys.exit(1)
print(f"not in this version: logits agree to {past:.1e} past the window")
