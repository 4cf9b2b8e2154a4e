"""A forward over several tokens on a filled cache ignores the recurrent state.

Expected: a prompt and then a block give the logits of one forward over both.
Observed: no exception, other logits from the block's first token on, in every class whose recurrent layers use the
state only for a single token (qwen3_5 and qwen3_next before 5.7, falcon_h1, bamba, nemotron_h before 5.13, lfm2 before
5.15, jamba still).
"""

import sys

import torch
import transformers
from transformers import JambaConfig, JambaForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_experts": 1, "num_experts_per_tok": 1, "mamba_dt_rank": 4}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
config = JambaConfig(vocab_size=100, num_hidden_layers=2, use_mamba_kernels=False, **sizes, **heads)
torch.manual_seed(0)
model = JambaForCausalLM(config).eval()
for weight in model.parameters():
    if weight.ndim > 1:
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

prompt, block = torch.arange(1, 11)[None], torch.arange(50, 54)[None]
with torch.no_grad():
    expected = model(torch.cat([prompt, block], dim=1)).logits[0, -4:]
    cache = model(prompt, use_cache=True).past_key_values
    if cache is None:
        print("cannot tell: this version returns no cache here")
        sys.exit(2)
    observed = model(block, None, None, cache).logits[0]  # by position: the name of this argument changed in 5.24
error, scale = (observed - expected).abs().max().item(), expected.std().item()
if error > 0.01 * scale:
    print(f"FAULT SHOWN: the block's logits are {error:.3f} off (their standard deviation is {scale:.3f})")
    sys.exit(1)
print(f"not in this version: logits agree to {error:.1e}")
