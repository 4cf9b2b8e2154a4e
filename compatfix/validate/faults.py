"""Faults planted on this very model, to show that the comparisons would see them.

A check that cannot fail proves nothing.

They are planted from outside, in the hands of the tree: in the cache that its commit left, in the arguments and outputs
of the target's forwards, in its result. So they work on any tree and need nothing of the runtime.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from compatfix.runtime.draft import sights_of
from compatfix.validate.bench import Bench, Mode, Run
from compatfix.validate.caches import STATES, cache_argument, copy_into, has, overwrite_last, slots
from compatfix.validate.compare import (
    draft_cache_difference,
    expected_tokens,
    feature_difference,
    node_difference,
    token_difference,
)
from compatfix.validate.losslessness import warm_up
from compatfix.validate.oracle import ALWAYS, ORACLE, Profile
from compatfix.validate.plain import PlainDecoder
from compatfix.validate.references import Reference, make_reference
from compatfix.validate.situations import windows
from compatfix.validate.watch import HIDDEN, Forward, Tamper, Watch

PROMPTS = 3
TOKENS = 24
IDLE = "it changes nothing on these texts, bit by bit"
FIRST_PROMPT = 700


class StateNotRolledBack(Tamper):
    """A rejected token stays in the state: recurrent states where there are some, else keys and values."""

    def before_verify(self, watch: Watch, cache: Any) -> None:
        decoder = PlainDecoder(watch.target, watch.committed)
        decoder.step((watch.committed[-1] + 7) % watch.head.size)
        if has(cache, STATES):
            copy_into(cache, decoder.cache, STATES)
        else:
            _last_from(cache, decoder.cache)


class StaleKeys(Tamper):
    """The last committed token's keys and values are those of a rejected token."""

    def before_verify(self, watch: Watch, cache: Any) -> None:
        if len(watch.committed) > len(watch.prompt):
            decoder = PlainDecoder(watch.target, watch.committed[:-1])
            decoder.step((watch.committed[-1] + 7) % watch.head.size)
            _last_from(cache, decoder.cache)


class CompactionOffByOne(Tamper):
    """The last committed place holds its neighbour's keys and values."""

    def before_verify(self, watch: Watch, cache: Any) -> None:
        if len(watch.committed) > len(watch.prompt):
            overwrite_last(cache, -2)


class SiblingLeaked(Tamper):
    """Every node sees one node that is not among its ancestors."""

    def inner(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kwargs["attention_mask"] = _each_mask(kwargs.get("attention_mask"), _leak)


class PositionOffByOne(Tamper):
    """Verification runs one position too far."""

    def inner(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if isinstance(kwargs.get("position_ids"), Tensor):
            kwargs["position_ids"] = kwargs["position_ids"] + 1


class WindowMaskMissing(Tamper):
    """Sliding layers see the whole past."""

    def inner(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        masks = kwargs.get("attention_mask")
        if isinstance(masks, dict) and isinstance(masks.get("full_attention"), Tensor):
            kwargs["attention_mask"] = dict.fromkeys(masks, masks["full_attention"])
        elif isinstance(masks, Tensor) and masks.ndim == 4:
            past = masks.shape[-1] - masks.shape[-2]
            opened = masks.clone()
            opened[..., :past] = True if masks.dtype == torch.bool else 0
            kwargs["attention_mask"] = opened


class HiddenStateOffset(Tamper):
    """Hidden states are read one layer off."""

    def after_verify(self, watch: Watch, forward: Forward, output: Any) -> None:
        states = getattr(output, "hidden_states", None)
        if states is not None:
            # Trees may keep those entries only that they read: then the next one of them.
            later = [next((s for s in states[i + 1 :] if s is not None), states[i]) for i in range(len(states))]
            output.hidden_states = tuple(
                new if old is not None else None for old, new in zip(states, later, strict=True)
            )


class WrongAcceptance(Tamper):
    """One more token is accepted than the target agrees with."""

    def after_verify(self, watch: Watch, forward: Forward, output: Any) -> None:
        if watch.prefill is forward:
            return
        node = forward.walk()[-1]
        child = next((n for n, parent in enumerate(forward.parents) if parent == node), None)
        if child is not None:
            logits = output.logits.clone()
            logits[0, node, forward.tokens[child]] = logits[0, node].max() + 1
            output.logits = logits


class DraftNotCropped(Tamper):
    """The noise of a draft stays in the draft's own cache."""

    def after_draft(self, watch: Watch, cache: Any) -> None:
        with torch.inference_mode():
            for slot in slots(cache):
                if slot.is_sequence:
                    changed = slot.tensor.clone()
                    changed[..., -1, :] *= -3
                    slot.write(changed)


class ContextFault(Tamper):
    """The draft is given another context than the target's hidden states; `changed` says which."""

    def changed(self, watch: Watch, context: Tensor) -> Tensor:
        """(1, T, layers * H) in, the same out."""
        raise NotImplementedError

    def around_draft(self, watch: Watch, call: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        given["target_hidden"] = self.changed(watch, given["target_hidden"])
        # What the tree handed over is this, as far as any comparison can know.
        watch.features[-1] = given["target_hidden"][0].detach().clone()
        return call(given)


class LayerIdOff(ContextFault):
    """One of the draft's layers is read at another's place."""

    def changed(self, watch: Watch, context: Tensor) -> Tensor:
        parts = list(context.chunk(_layers_read(watch), dim=-1))
        return torch.cat([parts[-1], *parts[1:]], dim=-1)


class RotatedBasis(ContextFault):
    """The draft is given hidden states in a rotated basis, as a rotated (quantised) checkpoint has them."""

    def changed(self, watch: Watch, context: Tensor) -> Tensor:
        parts = context.reshape(*context.shape[:-1], _layers_read(watch), -1).float()
        size = parts.shape[-1]
        draw = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
        rotation = torch.linalg.qr(draw).Q.to(parts.device)
        rotated: Tensor = (parts @ rotation).flatten(-2).to(context.dtype)
        return rotated


class DraftWindowsIgnored(Tamper):
    """Every layer of the draft sees the whole context and block."""

    def around_draft(self, watch: Watch, call: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        cache, noise = cache_argument((), given), given["noise_embedding"]
        past = 0 if cache is None else int(cache.get_seq_length())
        keys = past + given["position_ids"].shape[-1]
        return call({**given, "attention_mask": noise.new_zeros(1, 1, noise.shape[1], keys)})


def _layers_read(watch: Watch) -> int:
    return len(getattr(watch.draft, "target_layer_ids", None) or (0,))


# name -> (fault, what it is in words); result faults have no tamper and change how the run is asked for or read.
PLANTED: dict[str, tuple[Callable[[], Tamper] | None, str]] = {
    "state-not-rolled-back": (StateNotRolledBack, "a rejected token stays in the state"),
    "sibling-leaked": (SiblingLeaked, "a node sees a node of another branch"),
    "compaction-off-by-one": (CompactionOffByOne, "the accepted path is kept one place off"),
    "stale-keys": (StaleKeys, "keys and values of a rejected token stay"),
    "position-off-by-one": (PositionOffByOne, "verification runs one position too far"),
    "window-mask-missing": (WindowMaskMissing, "sliding layers see the whole past"),
    "hidden-state-offset": (HiddenStateOffset, "the draft is given the next layer's states"),
    "wrong-acceptance": (WrongAcceptance, "one token too many is accepted"),
    "draft-not-cropped": (DraftNotCropped, "noise stays in the draft's cache"),
    "mask-token-dropped": (None, "output tokens equal to the mask token are dropped"),
    "stop-ignored": (None, "the text goes on behind a stop token"),
    "wrong-eos-list": (None, "only the first of several stop tokens ends the text"),
    "layer-id-off": (LayerIdOff, "one layer that the draft reads is another one"),
    "rotated-basis": (RotatedBasis, "the draft is given hidden states in another basis"),
    "draft-windows-ignored": (DraftWindowsIgnored, "the draft sees past its windows"),
}


# On a chain no mask is passed, a draft may read one layer, a text may end inside a window: such faults then change
# nothing. The others always do, and one that seems not to could not be planted, which is not known to be harmless.
MAY_BE_IDLE = ("window-mask-missing", "hidden-state-offset", "layer-id-off", "draft-windows-ignored")


def run_faults(
    bench: Bench, modes: Sequence[Mode], report: Callable[[str, int, int], None], *, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Plants each fault in turn; stops at the first comparison that sees it."""
    warm_up(bench, modes)
    references = [
        make_reference(bench, FIRST_PROMPT + i, TOKENS + bench.block, with_tree=False) for i in range(PROMPTS)
    ]
    # A tree shows everything that a chain shows, and more.
    mode = next((m for m in modes if m.kind == "tree"), modes[0])
    names = [name for name in PLANTED if not only or name in only]
    return {"faults": [_plant(bench, mode, name, references, report, i, len(names)) for i, name in enumerate(names)]}


def _plant(
    bench: Bench,
    mode: Mode,
    name: str,
    references: Sequence[Reference],
    report: Callable[[str, int, int], None],
    done: int,
    total: int,
) -> dict[str, Any]:
    report(f"planted fault: {name}", done, total)
    make, words = PLANTED[name]
    reason = not_applicable(bench, mode, name)
    entry: dict[str, Any] = {"name": name, "what": words, "mode": mode.name, "applicable": reason is None}
    if reason is not None:
        return {**entry, "caught": False, "reason": reason}
    for number, reference in enumerate(references):
        caught = _try(bench, mode, name, None if make is None else make(), reference)
        if caught is not None:
            return {**entry, "caught": True, "prompts": number + 1, **caught}
    if name in MAY_BE_IDLE and idle(bench, mode, name, [(r.prompt, r.tokens, r.index) for r in references], ORACLE):
        return {**entry, "applicable": False, "caught": False, "reason": IDLE}
    return {**entry, "caught": False, "prompts": len(references)}


def idle(
    bench: Bench, mode: Mode, name: str, texts: Sequence[tuple[list[int], list[int], int]], profile: Profile | None
) -> bool:
    """Whether a fault changes nothing at all, bit by bit: text, logits of the nodes, the draft's context and output.

    `texts` are prompt, reference and salt of each generation.
    """
    make = PLANTED[name][0]
    assert make is not None
    for prompt, tokens, salt in texts:
        seen: list[tuple[list[int], list[Any]]] = []
        for tamper in (None, make()):
            common: dict[str, Any] = {"reference": tokens, "profile": profile, "salt": salt, "keep_logits": True}
            run = bench.run(mode, prompt, min(TOKENS, len(tokens)), tamper=tamper, **common)
            tensors = [*(forward.logits for forward in run.watch.rounds), *run.watch.features]
            seen.append((run.tokens, [*tensors, run.watch.last_draft.get("output")]))
        (right, untouched), (text, touched) = seen
        if right != text or len(untouched) != len(touched):
            return False
        if not all(a is b or torch.equal(a, b) for a, b in zip(untouched, touched, strict=True)):
            return False
    return True


def _try(bench: Bench, mode: Mode, name: str, tamper: Tamper | None, reference: Reference) -> dict[str, Any] | None:
    """Which comparison saw the fault on this prompt, or None."""
    common: dict[str, Any] = {"reference": reference.tokens, "salt": reference.index}
    if name == "stop-ignored":
        # A stop that is reached before the limit, and a tree that is not told of it.
        stop = reference.tokens[TOKENS // 2]
        run = bench.run(mode, reference.prompt, TOKENS, profile=ALWAYS, **common)
        return _tokens(bench, run, reference, expected_tokens(reference.tokens, TOKENS, (stop,)))
    if name == "wrong-eos-list":
        stop = reference.tokens[TOKENS // 2]
        others = [token for token in bench.plain_tokens if token not in reference.tokens][:1]
        run = bench.run(mode, reference.prompt, TOKENS, profile=ALWAYS, stops=others, **common)
        return _tokens(bench, run, reference, expected_tokens(reference.tokens, TOKENS, (*others, stop)))
    if name == "mask-token-dropped":
        mask = reference.tokens[TOKENS // 2]
        run = bench.run(mode, reference.prompt, TOKENS, profile=ORACLE, **common)
        run.tokens = [token for token in run.tokens if token != mask]
        return _tokens(bench, run, reference, expected_tokens(reference.tokens, TOKENS))
    run = bench.run(mode, reference.prompt, TOKENS, profile=ORACLE, keep_logits=True, tamper=tamper, **common)
    if not understood(run):
        return None
    if run.error is not None:
        return {"by": "exception", "detail": f"{run.error['type']}: {run.error['message']}"}
    seen = _tokens(bench, run, reference, expected_tokens(reference.tokens, TOKENS))
    if seen is not None:
        return seen
    nodes = node_difference(bench, run, range(min(4, len(run.watch.rounds))))
    if nodes["bad"] is not None:
        return {"by": "node logits", "size": nodes["bad"]["difference"]}
    features = feature_difference(bench, run)
    if features is not None:
        return {"by": "context features", "size": features.get("difference")}
    _, draft = draft_cache_difference(bench, run)
    if draft is not None:
        return {"by": "draft cache", "size": draft.get("difference")}
    return None


def understood(run: Run) -> bool:
    """A result that does not fit is no comparison that saw a fault: it would not fit without the fault either."""
    return run.error is None or "code" not in run.error


def _tokens(bench: Bench, run: Run, reference: Reference, expected: Sequence[int]) -> dict[str, Any] | None:
    if run.error is not None:
        return None
    difference = token_difference(bench, run, reference.prompt, expected)
    return (
        None if difference is None else {"by": "tokens", "index": difference["index"], "margin": difference["margin"]}
    )


def not_applicable(bench: Bench, mode: Mode, name: str) -> str | None:
    """Why a fault cannot be planted on this model; such a fault is neither caught nor missed."""
    if name == "window-mask-missing" and "target" not in windows(bench):
        return "the target has no sliding windows"
    if name == "sibling-leaked" and mode.kind != "tree":
        return "the tree verifies chains only"
    if name == "layer-id-off" and len(bench.layer_ids) < 2:
        return "the draft reads one layer"
    if name == "draft-windows-ignored":
        return _no_windows(bench, mode)
    decoder = PlainDecoder(bench.target, bench.prompt(4))
    attends = any(slot.is_sequence for slot in slots(decoder.cache))
    if name in ("compaction-off-by-one", "stale-keys", "sibling-leaked") and not attends:
        return "the target has no attention layers"
    if name == "position-off-by-one" and not _positions_matter(bench):
        return "the target does not use positions"
    return None


def _no_windows(bench: Bench, mode: Mode) -> str | None:
    """Windows can be ignored only where the tree honours them: where it calls the draft through the runtime."""
    if not any(sight.limited for sight in sights_of(bench.draft)):
        return "the draft has no windows"
    bench.run(mode, bench.prompt(4), 8)
    last = bench.watch.last_draft
    if not last or last["through"] is None:
        return "the tree does not call the draft through the runtime"
    names = inspect.signature(last["real"]).parameters
    return None if {"attention_mask", "position_ids"} <= set(names) else "the draft takes no mask"


def _positions_matter(bench: Bench) -> bool:
    """Whether a gap in the positions moves the logits at all."""
    prompt = bench.prompt(4)
    decoder = PlainDecoder(bench.target, prompt)
    shifted = PlainDecoder(bench.target, prompt)
    first = decoder.step(prompt[0])
    shifted.tokens.append(0)  # the next step then runs one position too far
    return float((first - shifted.step(prompt[0])).abs().max()) > 1e-4


def _each_mask(mask: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(mask, dict):
        return {key: _each_mask(value, change) for key, value in mask.items()}
    return change(mask) if isinstance(mask, Tensor) and mask.ndim == 4 else mask


def _leak(mask: Tensor) -> Tensor:
    """Opens, for every node, the last earlier node that it must not see."""
    size = mask.shape[-2]
    if size < 2:
        return mask
    opened = mask.clone()
    tail = opened[0, 0, :, -size:]
    hidden = ~tail if tail.dtype == torch.bool else tail < HIDDEN
    for node in range(size):
        earlier = hidden[node, :node].nonzero()
        if len(earlier):
            tail[node, int(earlier[-1])] = True if tail.dtype == torch.bool else 0
    return opened


def _last_from(cache: Any, source: Any) -> None:
    """The last keys and values of `source` in the place of the last ones of `cache`."""
    given = {(slot.layer, slot.name): slot.tensor for slot in slots(source)}
    with torch.inference_mode():
        for slot in slots(cache):
            other = given.get((slot.layer, slot.name))
            if slot.is_sequence and other is not None:
                changed = slot.tensor.clone()
                changed[..., -1, :] = other[..., -1, :]
                slot.write(changed)
