"""Chain and tree in the published style, under names of their own: nothing here can be found by its signature.

`straight` returns new tokens in a dictionary, `branching` yields them.
"""

import torch
from guess import layers_of
from transformers import AutoModelForCausalLM, DynamicCache


@torch.inference_mode()
def straight(big, small, ids, room, halts, width, hole, log):
    log = log or []
    prompt, limit = ids.shape[1], ids.shape[1] + room
    text = torch.full((1, limit + width), hole, dtype=torch.long, device=ids.device)
    text[:, :prompt] = ids
    places = torch.arange(text.shape[1], device=ids.device).unsqueeze(0)
    kv = DynamicCache()
    own = DynamicCache()
    seen = big(
        ids,
        position_ids=places[:, :prompt],
        past_key_values=kv,
        use_cache=True,
        logits_to_keep=1,
        output_hidden_states=True,
    )
    text[:, prompt] = seen.logits[:, -1].argmax(-1)
    context = layers_of(seen.hidden_states, small.target_layer_ids)
    start = prompt
    while start < limit:
        block = text[:, start : start + width].clone()
        if width > 1:
            hidden = small(
                target_hidden=context,
                noise_embedding=big.model.embed_tokens(block),
                position_ids=places[:, own.get_seq_length() : start + width],
                past_key_values=own,
                use_cache=True,
            )
            own.crop(start)
            block[:, 1:] = big.lm_head(hidden[:, 1:]).argmax(-1)
        seen = big(
            block,
            position_ids=places[:, start : start + width],
            past_key_values=kv,
            use_cache=True,
            output_hidden_states=True,
        )
        said = seen.logits.argmax(-1)
        right = 1 + int((block[:, 1:] == said[:, :-1]).long().cumprod(dim=1).sum())
        text[:, start : start + right] = block[:, :right]
        text[:, start + right] = said[:, right - 1]
        context = layers_of(seen.hidden_states, small.target_layer_ids)[:, :right]
        start += right
        kv.crop(start)
        log.append(right)
        if reached(text[0, prompt : start + 1].tolist(), halts):
            break
    return {"answer": cut(text[0, prompt : min(start + 1, limit)].tolist(), halts), "log": log}


@torch.inference_mode()
def branching(big, small, ids, room, halts, width, hole, leaves):
    prompt, limit = ids.shape[1], ids.shape[1] + room
    places = torch.arange(limit + width, device=ids.device).unsqueeze(0)
    kv = DynamicCache()
    own = DynamicCache()
    seen = big(
        ids,
        position_ids=places[:, :prompt],
        past_key_values=kv,
        use_cache=True,
        logits_to_keep=1,
        output_hidden_states=True,
    )
    new = [int(seen.logits[0, -1].argmax())]
    context = layers_of(seen.hidden_states, small.target_layer_ids)
    start = prompt
    while start < limit:
        block = torch.tensor([[new[-1]] + [hole] * (width - 1)], device=ids.device)
        hidden = small(
            target_hidden=context,
            noise_embedding=big.model.embed_tokens(block),
            position_ids=places[:, own.get_seq_length() : start + width],
            past_key_values=own,
            use_cache=True,
        )
        own.crop(start)
        ranks = 2 + leaves // (width - 1)
        ranked = big.lm_head(hidden[0, 1:]).topk(ranks, dim=-1).indices.tolist()
        tokens, parents = branches(new[-1], ranked, leaves)
        depths, visible = shape(parents)
        mask = torch.zeros(1, 1, len(tokens), start + len(tokens), dtype=big.dtype, device=ids.device)
        mask[0, 0, :, start:].masked_fill_(~visible.to(ids.device), torch.finfo(big.dtype).min)
        seen = big(
            torch.tensor([tokens], device=ids.device),
            position_ids=start + torch.tensor([depths], device=ids.device),
            attention_mask=mask,
            past_key_values=kv,
            use_cache=True,
            output_hidden_states=True,
        )
        said = seen.logits[0].argmax(-1).tolist()
        path = walk(tokens, parents, said)
        keep_path(kv, start, path)
        context = layers_of(seen.hidden_states, small.target_layer_ids)[:, path]
        new += [tokens[node] for node in path[1:]] + [said[path[-1]]]
        start += len(path)
        if reached(new, halts):
            break
    yield from cut(new[:room], halts)


def branches(root, ranked, leaves):
    """The likeliest tokens as a chain, less likely ones beside it for as long as the budget lasts."""
    tokens, parents, last = [root], [-1], 0
    spare = leaves - len(ranked)
    for first, *others in ranked[:leaves]:
        beside = others[: max(spare, 0)]
        spare -= len(beside)
        parents += [last] * (1 + len(beside))
        last = len(tokens)
        tokens += [first, *beside]
    return tokens, parents


def shape(parents):
    depths, visible = [0], torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents[1:], start=1):
        depths.append(depths[parent] + 1)
        visible[node] |= visible[parent]
    return depths, visible


def walk(tokens, parents, said):
    path, node = [], 0
    while node is not None:
        path.append(node)
        children = (n for n, parent in enumerate(parents) if parent == node and tokens[n] == said[node])
        node = next(children, None)
    return path


def keep_path(kv, past, path):
    chosen = past + torch.tensor(path)
    for layer in kv.layers:
        layer.keys = torch.cat([layer.keys[..., :past, :], layer.keys[..., chosen, :]], dim=-2)
        layer.values = torch.cat([layer.values[..., :past, :], layer.values[..., chosen, :]], dim=-2)


def reached(new, halts):
    return any(token in halts for token in new) if halts else False


def cut(new, halts):
    end = next((i + 1 for i, token in enumerate(new) if token in (halts or ())), len(new))
    return new[:end]


def load(path):
    target = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    return target
