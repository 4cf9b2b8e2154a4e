"""Suspects in the block that the draft fills: mask token, slot 0, scale, positions, what its layers see."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.diagnose.pair import Pair
from compatfix.diagnose.toggle import NotHere, Suspect, Toggle
from compatfix.runtime.draft import Sight, draft_mask, sights_of
from compatfix.runtime.draft_config import draft_value
from compatfix.validate.caches import cache_argument
from compatfix.validate.watch import Tamper, Watch

Call = Callable[[dict[str, Any]], Any]
MULTIPLIERS = ("input_embedding_scale", "embedding_multiplier", "scale_emb", "embedding_scale")
# A row this much in the direction of a token's embedding is that embedding, at whatever scale.
ALIGNED = 0.999
TOKENS = ("mask", "pad", "eos", "bos", "unk")


class Noise(Tamper):
    """The rows behind the block's first are the embedding of `token`."""

    def __init__(self, pair: Pair, token: int) -> None:
        self._pair, self._token = pair, token

    def around_draft(self, watch: Watch, call: Call, given: dict[str, Any]) -> Any:
        noise = given["noise_embedding"].clone()
        noise[0, 1:] = _in_place_of(noise[0, 1], self._pair, self._token)
        return call({**given, "noise_embedding": noise})


class First(Tamper):
    """The block's first row is the last committed token, or `token`."""

    def __init__(self, pair: Pair, token: int | None) -> None:
        self._pair, self._token = pair, token

    def around_draft(self, watch: Watch, call: Call, given: dict[str, Any]) -> Any:
        token = watch.following() if self._token is None else self._token
        if token is None:
            raise NotHere("the last committed token cannot be told")
        noise = given["noise_embedding"].clone()
        noise[0, 0] = _in_place_of(noise[0, 0], self._pair, token)
        return call({**given, "noise_embedding": noise})


def _in_place_of(row: Tensor, pair: Pair, token: int) -> Tensor:
    """(H,): the embedding of `token`, scaled as the tree scales the row that it replaces.

    A token put in at another scale would mend a wrong scale too, and be named for it.
    """
    meant = pair.embedded(pair.bench.head.token_of(row), row).float()
    is_token = torch.nn.functional.cosine_similarity(row.float(), meant, dim=0) > ALIGNED
    factor = row.float().norm() / meant.norm() if is_token else 1.0
    return (pair.embedded(token, row).float() * factor).to(row)


class Scaled(Tamper):
    def __init__(self, factor: float) -> None:
        self._factor = factor

    def around_draft(self, watch: Watch, call: Call, given: dict[str, Any]) -> Any:
        return call({**given, "noise_embedding": given["noise_embedding"] * self._factor})


class Positions(Tamper):
    """Positions follow one another from the draft's stored context on; the block's are moved by `offset`."""

    def __init__(self, offset: int = 0, *, absolute: bool = False, restarted: bool = False) -> None:
        self._offset, self._absolute, self._restarted = offset, absolute, restarted

    def around_draft(self, watch: Watch, call: Call, given: dict[str, Any]) -> Any:
        own = given.get("position_ids")
        if not isinstance(own, Tensor):
            raise NotHere("the draft is not given position_ids")
        changed = own.clone()
        block = given["noise_embedding"].shape[1]
        if self._absolute:
            end = len(watch.committed) + block
            changed = torch.arange(end - own.shape[-1], end, device=own.device)[None].to(own)
        if self._restarted:
            changed = changed - changed[..., -block:].amin()
        changed[..., -block:] += self._offset
        return call({**given, "position_ids": changed})


class Seen(Tamper):
    """The draft's layers see what `sights` say; None for what the config says, one for all layers otherwise."""

    def __init__(self, pair: Pair, sight: Sight | None) -> None:
        self._draft, self._sight = pair.draft, sight

    def around_draft(self, watch: Watch, call: Call, given: dict[str, Any]) -> Any:
        cache = cache_argument((), given)
        past = int(cache.get_seq_length()) if cache is not None else 0
        block = given["noise_embedding"].shape[1]
        keys = past + given["target_hidden"].shape[1] + block
        with _masked(self._draft, self._sight, block, keys):
            return call({**given, "attention_mask": None} if "attention_mask" in given else given)


@contextmanager
def _masked(draft: nn.Module, sight: Sight | None, queries: int, keys: int) -> Iterator[None]:
    configured = sights_of(draft)
    handles = []
    for module in _attending(draft):
        layer: Any = module.layer_idx
        own = sight or (configured[layer] if layer < len(configured) else Sight(None, False))

        def masked(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], own: Sight = own
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            states = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            mask = draft_mask(own, queries, keys, states.dtype, states.device)
            return args, {**kwargs, "attention_mask": mask}

        handles.append(module.register_forward_pre_hook(masked, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _attending(draft: nn.Module) -> list[nn.Module]:
    # The class is asked: while the runtime gives its own masks, a module's forward is a stand-in without names.
    return [
        module
        for module in draft.modules()
        if isinstance(getattr(module, "layer_idx", None), int)
        and "attention_mask" in inspect.signature(type(module).forward).parameters
    ]


def suspects(pair: Pair) -> list[Suspect]:
    return [_mask_token(pair), _first(pair), _positions(pair), _scale(pair), _sight(pair)]


def _mask_token(pair: Pair) -> Suspect:
    told = pair.bench.mask
    toggles = [Toggle(f"mask rows of the configured token {told}", "embed the draft's mask_token_id in all rows behind "
                      "the first", lambda: Noise(pair, told))]  # fmt: skip
    for token, what in mask_candidates(pair).items():
        step = f"set mask_token_id to {token} ({what}) in the draft's config.json"
        toggles.append(Toggle(f"mask rows of token {token}, {what}", step, partial(Noise, pair, token)))
    return Suspect(
        "mask token", "Is the block filled with the token that the draft was trained on?", "CF951", tuple(toggles)
    )


def mask_candidates(pair: Pair) -> dict[int, str]:
    """Other tokens that may have been meant, by id."""
    found: dict[int, str] = {}
    size = int(pair.embedding_weight.shape[0])
    told = pair.bench.mask

    def add(token: Any, what: str) -> None:
        if isinstance(token, int) and 0 <= token < size and token != told:
            found.setdefault(token, what)

    for name in TOKENS:
        add(getattr(pair.tokenizer, f"{name}_token_id", None), f"the tokenizer's {name} token")
    add(getattr(pair.draft.config, "mask_token_id", None), "the config's own mask_token_id")
    for token in sorted(getattr(pair.tokenizer, "added_tokens_decoder", {}) or {})[-3:]:
        add(token, "an added token")
    if pair.tokenizer is not None:
        add(len(pair.tokenizer) - 1, "the tokenizer's last token")
        add(len(pair.tokenizer), "the first row behind the tokenizer's tokens")
    add(size - 1, "the vocabulary's last row")
    return found


def _first(pair: Pair) -> Suspect:
    mask = pair.bench.mask
    return Suspect(
        "slot 0",
        "Does the block begin with the last committed token?",
        "CF951",
        (
            Toggle("the last committed token first", "begin the block with the last token", lambda: First(pair, None)),
            Toggle("the mask first", "begin the block with the mask", lambda: First(pair, mask)),
        ),
    )


def _positions(pair: Pair) -> Suspect:
    step = "give the draft the absolute positions of its context and block"
    return Suspect(
        "draft's positions",
        "Are the draft's position ids those of its training?",
        "CF951",
        (
            Toggle("absolute positions", step, lambda: Positions(absolute=True)),
            Toggle("the block one position later", "move the block's positions by +1", lambda: Positions(1)),
            Toggle("the block one position earlier", "move the block's positions by -1", lambda: Positions(-1)),
            Toggle("the block from position 0", "restart positions per block", lambda: Positions(restarted=True)),
        ),
    )


def _scale(pair: Pair) -> Suspect:
    root = float(pair.config.hidden_size) ** 0.5
    factors = {round(root, 4): "sqrt(hidden size)"}
    for holder in (pair.config, pair.draft.config):
        for name in MULTIPLIERS:
            value = draft_value(holder, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value not in (0, 1):
                factors.setdefault(round(float(value), 4), name)
    toggles = []
    for factor, name in factors.items():
        for by, word in ((factor, "times"), (1 / factor, "divided by")):
            step = f"the rows given to the draft must be {word} {factor:g} ({name})"
            toggles.append(Toggle(f"noise {word} {name}", step, partial(Scaled, by)))
    return Suspect("embedding scale", "Are the embeddings scaled as in the draft's training?", "CF951", tuple(toggles))


def _sight(pair: Pair) -> Suspect:
    question = "Do the draft's layers see what its config says, and is the config right?"
    if not _attending(pair.draft):
        return Suspect(
            "draft's windows", question, "CF951", unmeasured="no module of the draft takes an attention_mask"
        )
    told = sights_of(pair.draft)
    toggles = [
        Toggle("masks as the draft's config says", "compatfix patch --select CF408 TREE", lambda: Seen(pair, None)),
        Toggle("the whole context and block", "no window and no causal mask: mend layer_types and is_causal in the "
               "draft's config.json, and pass no mask", lambda: Seen(pair, Sight(None, False))),
        Toggle("the block causally", "set is_causal in the draft's config.json", lambda: Seen(pair, Sight(None, True))),
    ]  # fmt: skip
    if all(not sight.limited for sight in told):
        toggles = toggles[1:]
    return Suspect("draft's windows", question, "CF951", tuple(toggles))
