"""A one-layer draft in the published shape: context features through `fc`, a cache of its own, a block of noise."""

import torch
from telemetry import meter  # not installed anywhere: must be stubbed
from torch import nn
from transformers import DynamicCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3PreTrainedModel


class TinyDraft(Qwen3PreTrainedModel):
    config_class = Qwen3Config

    def __init__(self, config):
        super().__init__(config)
        options = config.dflash_config
        self.block_size = config.block_size
        self.mask_token_id = options["mask_token_id"]
        self.target_layer_ids = options["target_layer_ids"]
        self.fc = nn.Linear(len(self.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.key = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.value = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.post_init()

    def forward(self, position_ids, noise_embedding=None, target_hidden=None, past_key_values=None):
        source = torch.cat([self.fc(target_hidden), noise_embedding], dim=1)
        keys, values = self.key(source)[:, None], self.value(source)[:, None]
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, 0)
        weights = torch.softmax(noise_embedding[:, None] @ keys.transpose(-1, -2) / 8, dim=-1)
        return noise_embedding + (weights @ values)[:, 0]


def features(hidden_states, layer_ids):
    return torch.cat([hidden_states[i + 1] for i in layer_ids], dim=-1)


@meter.timed
def empty_cache(config=None):
    return DynamicCache(config=config)


def crop(cache, length):
    surplus = cache.get_seq_length() - length
    if surplus > 0:
        cache.crop(-surplus)
