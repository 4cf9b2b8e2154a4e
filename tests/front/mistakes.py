"""Mistakes of speculative-decoding code, each on a tiny model; run by provoke.py under two versions of transformers."""

from __future__ import annotations

import torch
import transformers
from transformers import BatchEncoding, DynamicCache

torch.set_num_threads(1)
SIZES = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
IDS = torch.arange(1, 21)[None]
PLAIN = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **HEADS)).eval()
HYBRID = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**SIZES, **HEADS, **LINEAR, **EXPERTS)).eval()
WINDOWED = transformers.Gemma3ForCausalLM(
    transformers.Gemma3TextConfig(
        **SIZES, **HEADS, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    )
).eval()


def prefilled(model, cache=None):
    with torch.no_grad():
        output = model(IDS, None, None, cache, use_cache=True)
    return output.past_key_values if cache is None else cache


def mistake_crop_length():
    cache = prefilled(PLAIN, DynamicCache())
    cache.crop(7)


def mistake_crop_keyword():
    DynamicCache().crop(max_length=7)


def mistake_crop_hybrid():
    cache = prefilled(HYBRID)
    cache.crop(-3)


def mistake_crop_window():
    cache = prefilled(WINDOWED, DynamicCache(config=WINDOWED.config))
    cache.crop(-4)


def mistake_bare_cache():
    HYBRID(IDS, None, None, DynamicCache())


def mistake_assisted():
    HYBRID.generate(IDS, assistant_model=PLAIN, max_new_tokens=4, do_sample=False)


def mistake_key_cache():
    return DynamicCache().key_cache[0]


def mistake_subscript():
    return DynamicCache()[0]


def mistake_state_is_dict():
    cache = prefilled(HYBRID)
    return cache.layers[0].recurrent_states.clone()


def mistake_length_of_layer():
    return DynamicCache(config=HYBRID.config).get_seq_length(0)


def mistake_long_mask():
    cache = prefilled(PLAIN, DynamicCache())
    PLAIN(IDS[:, :3], torch.zeros(1, 1, 3, 30), None, cache)


def mistake_wrapped_config():
    """A model with a vision part keeps these in its text config."""
    return transformers.Gemma3Config().num_hidden_layers


def mistake_wrapped_model():
    with torch.device("meta"):
        text = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 300000}
        vision = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
        config = transformers.Gemma3Config(text_config=text, vision_config=vision)
        target = transformers.Gemma3ForConditionalGeneration(config)
    return target.model.embed_tokens


def mistake_head():
    return PLAIN.model.lm_head


def mistake_block_size():
    return PLAIN.config.block_size


def mistake_rope_theta():
    return PLAIN.config.rope_theta


def mistake_chat_template():
    encoding = BatchEncoding({"input_ids": IDS})
    return encoding.shape[1]


def mistake_layer_id():
    hidden_states = PLAIN(IDS, output_hidden_states=True).hidden_states
    return [hidden_states[i + 1] for i in (0, 2)]


def mistake_synchronize():
    torch.cuda.synchronize()


def mistake_flash_attention():
    transformers.AutoModelForCausalLM.from_config(PLAIN.config, attn_implementation="flash_attention_2")


def mistake_unknown_type():
    transformers.AutoConfig.for_model("qwen99")


def mistake_attention_type():
    return PLAIN.model.layers[0].attention_type


def mistake_rotary():
    return type(PLAIN.model.rotary_emb)(config=PLAIN.config, device="cpu")


def mistake_own_bug():
    raise ValueError("the batch must not be empty")
