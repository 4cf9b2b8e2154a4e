"""Trains a small hybrid target and a DFlash draft for it on the CPU, and writes both as model directories.

    python -m compatfix.demo.train_pair OUTPUT

The target is of the Qwen3.5 class (three Gated DeltaNet layers and one of full attention), the draft is the reference
tree's own draft class. Both are trained on generated text (see text.py), the draft as its paper says: it fills blocks
of mask tokens behind random places, given the target's hidden states before them (DFlash, arXiv 2602.06036).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.demo.text import corpus
from compatfix.runtime.gated_delta_rule import tree_gated_delta

VOCABULARY = 384
END, MASK = "<|endoftext|>", "<|mask|>"
LENGTH = 128
BLOCK = 8
LAYER_IDS = [1, 2]
TRAINING_SEED, HELD_OUT_SEED = 1, 2

TARGET = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
}
DRAFT = {
    "hidden_size": TARGET["hidden_size"],
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
}


def main() -> None:
    options = parsed()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    begun = time.perf_counter()
    documents = corpus(TRAINING_SEED, options.characters)
    tokenizer = trained_tokenizer(documents)
    tokens, held_out = (encoded(tokenizer, part) for part in (documents, corpus(HELD_OUT_SEED, 40_000)))
    say(f"{len(tokens)} tokens of text, {len(tokenizer)} in the vocabulary")

    target = new_target(tokenizer)
    say(f"target: {type(target).__name__}, {size(target)} parameters")
    train(target, options.target_steps, 4e-3, lambda: target_loss(target, batch(tokens, options.rows)))
    with torch.no_grad():
        say(f"target: loss {target_loss(target, batch(held_out, 32)):.3f} per token on held-out text")

    draft = new_draft(options.tree, target, tokenizer)
    say(f"draft: {type(draft).__name__}, {size(draft)} parameters")
    target.requires_grad_(False)
    train(draft, options.draft_steps, 3e-3, lambda: draft_loss(draft, target, batch(tokens, options.rows)))
    with torch.no_grad():
        right = draft_accuracy(draft, target, batch(held_out, 32))
    say("draft: right on held-out text, by place in the block: " + " ".join(f"{share:.2f}" for share in right))

    save(options.output, target, draft, tokenizer)
    say(f"written to {options.output} after {time.perf_counter() - begun:.0f} s")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m compatfix.demo.train_pair", description=__doc__)
    parser.add_argument("output", type=Path, help="a directory; target/ and draft/ are written into it")
    parser.add_argument("--tree", type=Path, default=Path("vendor/ddtree_ref"), help="the tree with the draft's class")
    parser.add_argument("--target-steps", type=int, default=160)
    parser.add_argument("--draft-steps", type=int, default=700)
    parser.add_argument("--rows", type=int, default=8, help=f"sequences of {LENGTH} tokens per step")
    parser.add_argument("--characters", type=int, default=1_500_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def trained_tokenizer(documents: Sequence[str]) -> Any:
    """A byte-level BPE tokenizer with a token that ends a document and one that only drafts see."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        documents[:1000],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END, MASK],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=END, mask_token=MASK)


def encoded(tokenizer: Any, documents: Sequence[str]) -> Tensor:
    """(T,) ids, with the end token behind each document."""
    ids: list[int] = []
    for document in documents:
        ids += [*tokenizer.encode(document), tokenizer.eos_token_id]
    return torch.tensor(ids)


def new_target(tokenizer: Any) -> Any:
    from transformers.models.qwen3_5 import configuration_qwen3_5 as configs
    from transformers.models.qwen3_5 import modeling_qwen3_5 as models

    quicken(models)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return models.Qwen3_5ForCausalLM(configs.Qwen3_5TextConfig(vocab_size=len(tokenizer), **TARGET, **ids))


def new_draft(tree: Path, target: Any, tokenizer: Any) -> Any:
    """The draft class of `tree`, which keeps it in the module `model`."""
    from transformers import Qwen3Config

    sys.path.insert(0, str(tree.resolve()))
    from model import DFlashDraftModel  # type: ignore[import-not-found]

    config = Qwen3Config(
        vocab_size=len(tokenizer), **DRAFT, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    config.block_size = BLOCK
    config.num_target_layers = target.config.num_hidden_layers
    config.dflash_config = {"mask_token_id": tokenizer.mask_token_id, "target_layer_ids": LAYER_IDS}
    config._attn_implementation = "sdpa"
    return DFlashDraftModel(config)


def quicken(models: Any) -> None:
    """Trains with the triangular solve of the runtime in place of the library's reference loop: the same rule."""

    def rule(
        query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v, decay, strength = (x.transpose(1, 2).float() for x in (query, key, value, g, beta))
        if options.get("use_qk_l2norm_in_kernel"):
            q, k = (nn.functional.normalize(x, dim=-1, eps=1e-6) for x in (q, k))
        q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], dim=1) for x in (q, k))
        causal = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
        out, _ = tree_gated_delta(q * q.shape[-1] ** -0.5, k, v, decay, strength, causal, state)
        return out.transpose(1, 2).to(query.dtype), None

    for name in ("torch_chunk_gated_delta_rule", "chunk_gated_delta_rule"):
        if hasattr(models, name):
            setattr(models, name, rule)


def batch(tokens: Tensor, rows: int) -> Tensor:
    """(rows, LENGTH) ids from random places."""
    starts = torch.randint(0, len(tokens) - LENGTH, (rows, 1))
    return tokens[starts + torch.arange(LENGTH)]


def target_loss(target: Any, ids: Tensor) -> Tensor:
    logits = target(ids, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def draft_loss(draft: Any, target: Any, ids: Tensor) -> Tensor:
    """Cross entropy of the block's places, the first ones weighing more: what follows a rejection is not used."""
    logits, labels = draft_blocks(draft, target, ids)
    losses = nn.functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape)
    weights = torch.exp(-torch.arange(BLOCK - 1) / 4.0)
    return (losses * weights).sum(-1).mean() / weights.sum()


def draft_accuracy(draft: Any, target: Any, ids: Tensor) -> list[float]:
    logits, labels = draft_blocks(draft, target, ids)
    right: list[float] = (logits.argmax(-1) == labels).float().mean((0, 1)).tolist()
    return right


def draft_blocks(draft: Any, target: Any, ids: Tensor, blocks: int = 8) -> tuple[Tensor, Tensor]:
    """Logits (B, blocks, BLOCK - 1, V) behind `blocks` random places of each sequence, and the tokens there.

    All blocks of a sequence go through the draft at once. A block sees itself and the context before it, as it does
    when it is generated.
    """
    rows, length = ids.shape
    with torch.no_grad():
        states = target(ids, use_cache=False, output_hidden_states=True).hidden_states
        context = torch.cat([states[layer + 1] for layer in LAYER_IDS], dim=-1)  # (B, T, L * H)
    anchors = torch.randint(4, length - BLOCK, (rows, blocks))
    places = anchors[..., None] + torch.arange(BLOCK)  # (B, blocks, BLOCK)
    true = ids.gather(1, places.flatten(1)).view(places.shape)
    noise = torch.full_like(true, draft.mask_token_id)
    noise[..., 0] = true[..., 0]
    of_context = torch.arange(length) < anchors.repeat_interleave(BLOCK, 1)[..., None]  # (B, Q, T)
    number = torch.arange(blocks).repeat_interleave(BLOCK)
    of_blocks = (number[:, None] == number).expand(rows, -1, -1)  # (B, Q, Q)
    visible = torch.cat([of_context, of_blocks], dim=-1)[:, None]
    hidden = draft(
        position_ids=torch.cat([torch.arange(length).expand(rows, -1), places.flatten(1)], dim=1),
        attention_mask=torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min),
        noise_embedding=target.get_input_embeddings()(noise.flatten(1)),
        target_hidden=context,
    )
    logits = target.get_output_embeddings()(hidden).view(rows, blocks, BLOCK, -1)
    return logits[:, :, 1:], true[..., 1:]


def train(model: Any, steps: int, rate: float, loss_of: Callable[[], Tensor]) -> None:
    """AdamW with a short warm-up and a cosine to nothing."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    for step in range(1, steps + 1):
        loss = loss_of()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == steps:
            say(f"  step {step} of {steps}: loss {loss.item():.3f}")
    model.eval()


def save(output: Path, target: Any, draft: Any, tokenizer: Any) -> None:
    """bfloat16 safetensors, the target's in shards, with config and tokenizer."""
    target.generation_config.eos_token_id = tokenizer.eos_token_id
    target.generation_config.pad_token_id = tokenizer.pad_token_id
    target.bfloat16().save_pretrained(output / "target", max_shard_size="600KB")
    tokenizer.save_pretrained(output / "target")
    draft.bfloat16().save_pretrained(output / "draft")
    config = output / "draft" / "config.json"
    content = json.loads(config.read_text())
    # Where versions before 5 look for it.
    content["rope_theta"] = content.get("rope_parameters", {}).get("rope_theta", 10000.0)
    config.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def say(line: str) -> None:
    print(line, flush=True)


def _rate(step: int, steps: int) -> float:
    warm_up = max(1, steps // 20)
    return min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


if __name__ == "__main__":
    main()
