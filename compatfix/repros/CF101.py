"""`target.model.embed_tokens` does not exist on the class with a vision part.

Expected: a path to the embeddings that works on a model's text class works on the class that its checkpoint names.
Observed: AttributeError; there the path is `model.language_model.embed_tokens`. get_input_embeddings() is on both.
"""

import sys

import torch
import transformers

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
try:
    from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration
except ImportError:
    print("cannot tell: this version has no qwen3_5")
    sys.exit(2)
sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
config = Qwen3_5Config(text_config={**sizes, "layer_types": ["full_attention"]}, vision_config=vision)
with torch.device("meta"):
    text, whole = Qwen3_5ForCausalLM(config.get_text_config()), Qwen3_5ForConditionalGeneration(config)

assert text.model.embed_tokens is text.get_input_embeddings()
try:
    found = whole.model.embed_tokens is whole.get_input_embeddings()
except AttributeError as error:
    print(f"FAULT SHOWN: model.embed_tokens of {type(whole).__name__} raised AttributeError: {error}")
    sys.exit(1)
print(f"not in this version: model.embed_tokens {'is' if found else 'is not'} the input embeddings")
