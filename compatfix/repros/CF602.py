"""Asking for FlashAttention by name stops loading where it is not installed.

Expected: a script that would run under sdpa as well runs on a machine without flash-attn.
Observed: ImportError before a weight is read. Where is_flash_attn_2_available() is false, leave the argument out.
"""

import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3Config

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
try:
    AutoModelForCausalLM.from_config(Qwen3Config(**sizes, **heads), attn_implementation="flash_attention_2")
except (ImportError, ValueError) as error:
    print(f"FAULT SHOWN: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    sys.exit(1)
print("cannot tell: FlashAttention runs on this machine")
sys.exit(2)
