"""A one-layer draft in the published shape."""

import torch
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3PreTrainedModel


class Guess(Qwen3PreTrainedModel):
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

    def forward(self, position_ids, noise_embedding=None, target_hidden=None, past_key_values=None, use_cache=False):
        source = torch.cat([self.fc(target_hidden), noise_embedding], dim=1)
        keys, values = self.key(source)[:, None], self.value(source)[:, None]
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, 0)
        weights = torch.softmax(noise_embedding[:, None] @ keys.transpose(-1, -2) / 8, dim=-1)
        return noise_embedding + (weights @ values)[:, 0]


def layers_of(hidden_states, layer_ids):
    offset = 1
    return torch.cat([hidden_states[layer_id + offset] for layer_id in layer_ids], dim=-1)
