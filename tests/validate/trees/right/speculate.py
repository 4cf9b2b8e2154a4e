"""Chain and tree generation in the published style, right for pure attention. The tests make it wrong, line by line."""

from types import SimpleNamespace

import torch
from draft import crop, empty_cache, features


@torch.inference_mode()
def chain_generate(
    model, target, input_ids, mask_token_id, max_new_tokens, block_size, stop_token_ids, temperature=0.0
):
    return generate(model, target, input_ids, mask_token_id, max_new_tokens, block_size, stop_token_ids, None)


@torch.inference_mode()
def tree_generate(
    model, target, input_ids, mask_token_id, max_new_tokens, block_size, stop_token_ids, temperature=0.0, tree_budget=16
):
    return generate(model, target, input_ids, mask_token_id, max_new_tokens, block_size, stop_token_ids, tree_budget)


def generate(model, target, prompt, mask_token_id, limit, block_size, stops, budget):
    cache, draft_cache = empty_cache(target.config), empty_cache()
    output = target(prompt, past_key_values=cache, use_cache=True, output_hidden_states=True)
    tokens = [*prompt[0].tolist(), int(output.logits[0, -1].argmax())]
    context = features(output.hidden_states, model.target_layer_ids)
    start, lengths = prompt.shape[1], []
    while start < prompt.shape[1] + limit:
        block = torch.tensor([[tokens[-1]] + [mask_token_id] * (block_size - 1)])
        if block_size > 1:
            noise = target.get_input_embeddings()(block)
            hidden = model(
                position_ids=torch.arange(draft_cache.get_seq_length(), start + block_size)[None],
                noise_embedding=noise,
                target_hidden=context,
                past_key_values=draft_cache,
            )
            crop(draft_cache, start)
            ranked = target.get_output_embeddings()(hidden[0, 1:]).topk(2, dim=-1).indices.tolist()
        else:
            ranked = []
        ids, parents = draft_tree(tokens[-1], ranked, budget)
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        visible = torch.eye(len(ids), dtype=torch.bool)
        for node, parent in enumerate(parents[1:], start=1):
            visible[node] |= visible[parent]
        mask = torch.zeros(1, 1, len(ids), start + len(ids))
        mask[0, 0, :, start:].masked_fill_(~visible, torch.finfo(mask.dtype).min)
        output = target(
            torch.tensor([ids]),
            position_ids=start + torch.tensor([depths]),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=True,
        )
        said = output.logits[0].argmax(-1).tolist()
        path = walk(ids, parents, said)
        keep(cache, start, path)
        context = features(output.hidden_states, model.target_layer_ids)[:, path]
        tokens = tokens[:-1] + [ids[node] for node in path] + [said[path[-1]]]
        start += len(path)
        lengths.append(len(path))
        if stops and any(token in stops for token in tokens[prompt.shape[1] :]):
            break
    new = tokens[prompt.shape[1] :][:limit]
    end = next((i + 1 for i, token in enumerate(new) if token in (stops or ())), len(new))
    output_ids = torch.tensor([[*prompt[0].tolist(), *new[:end]]])
    counts = {"num_input_tokens": prompt.shape[1], "num_output_tokens": end, "decode_rounds": len(lengths)}
    return SimpleNamespace(output_ids=output_ids, acceptance_lengths=lengths, **counts)


def draft_tree(root, ranked, budget):
    """The first ranks as a chain; with a budget, second ranks as leaves beside it."""
    ids, parents, last = [root], [-1], 0
    for first, second in ranked:
        parent = last
        ids.append(first)
        parents.append(parent)
        last = len(ids) - 1
        if budget is not None and len(ids) <= budget:
            ids.append(second)
            parents.append(parent)
    return ids, parents


def walk(ids, parents, said):
    path = [0]
    while True:
        children = [node for node in range(len(ids)) if parents[node] == path[-1] and ids[node] == said[path[-1]]]
        if not children:
            return path
        path.append(children[0])


def keep(cache, start, path):
    chosen = start + torch.tensor(path)
    for layer in cache.layers:
        layer.keys = torch.cat([layer.keys[..., :start, :], layer.keys[..., chosen, :]], dim=-2)
        layer.values = torch.cat([layer.values[..., :start, :], layer.values[..., chosen, :]], dim=-2)


def load(path):
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(path)
    return target
