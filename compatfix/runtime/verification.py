"""verify, commit, crop_to, roll_back: the contract between a verifying forward and what is kept of it.

`verify` leaves a pending record on the cache object that it was given; `commit` or `crop_to` consumes it. Nothing about
a generation lives anywhere else, so several generations, and several copies of this package, can go on side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .attest import tell
from .caches import is_attention_only, store_every_token
from .calls import Call, bind
from .hidden import NarrowCall, NotCaptured, UsedBy, give_up, narrowed
from .masks import additive, is_causal, read_tree
from .plans import dtype_of, lock_of, plan_of
from .refusal import RuntimeRefusal
from .rope import needs_single_steps
from .slots import COUNT, Snapshot, any_state, check_complete, keep_tokens, length
from .strategies import Block, Record, Steps
from .trees import Tree

PENDING = "_compatfix_pending"


def verify(target: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Calls `target` with the same arguments and returns its output, leaving a record of the block on its cache.

    A tree is read from the last N columns of a 4D mask; no mask is a chain. On an empty cache this is a prefill and
    nothing is recorded. A chain that is still pending is committed whole first. After an exception the cache is as it
    was. With `output_hidden_states=used_by(consumer)` only the hidden states that the consumer reads are kept.
    """
    call = bind(target, args, kwargs)
    used = call.arguments.get("output_hidden_states")
    if not isinstance(used, UsedBy):
        return _checked(call)
    with lock_of(target):
        narrow = narrowed(call, used)
        while isinstance(narrow, NarrowCall):
            try:
                return narrow.whole(_checked(narrow))
            except NotCaptured as reason:  # the cache is as it was: the same call can be made another way
                narrow = give_up(narrow, reason)
        return _checked(narrow)


def commit(cache: Any, indices: Sequence[int] | Tensor) -> None:
    """Keeps the nodes `indices` of the verified block: any prefix of a path from the root, the root (0) included."""
    record = _pending(cache)
    if record is None:
        raise RuntimeRefusal("nothing to commit: no verified block is pending on this cache")
    path = record.tree.path(indices.tolist() if isinstance(indices, Tensor) else indices)
    _settle(cache, record, path)


def crop_to(cache: Any, wanted: int) -> None:
    """Makes the cache `wanted` tokens long. Exact, or refused before anything is changed.

    With a chain pending, any length from the block's start to its end; with a tree pending, only its start. Otherwise
    keys and values are cut; states cannot be.
    """
    wanted, current, record = int(wanted), length(cache), _pending(cache)
    if not 0 <= wanted <= current:
        raise RuntimeRefusal(f"cannot crop a cache of {current} tokens to {wanted}")
    if record is not None and wanted >= record.start:
        if wanted > record.start and not record.tree.is_chain:
            raise RuntimeRefusal("a tree is pending: commit(cache, indices) says which of its nodes to keep")
        _settle(cache, record, range(wanted - record.start))
        return
    if record is None and wanted == current:
        return
    if not is_attention_only(cache):
        raise RuntimeRefusal(
            f"cannot crop from {current} to {wanted} tokens: the recurrent states of this cache cannot be rolled back "
            "that far; only the block of the last verify can be taken back"
        )
    check_complete(cache)
    keep_tokens(cache, wanted, ())
    cache.__dict__.pop(PENDING, None)


def roll_back(cache: Any, count: int) -> None:
    """Removes the last `count` tokens, under the rules of `crop_to`."""
    if count < 0:
        raise RuntimeRefusal(f"cannot remove {count} tokens")
    crop_to(cache, length(cache) - int(count))


class SingleRecord(Record):
    """A block of one token went the plain way; taking it back puts the states back."""

    def __init__(self, start: int, before: Snapshot) -> None:
        super().__init__(start, Tree.chain(1))
        self.before = before

    def keep(self, cache: Any, path: Sequence[int]) -> None:
        if not path:
            self.before.restore(cache)


def _checked(call: Call) -> Any:
    """The call, verified where it is given a cache; else a plain forward."""
    if call.cache is None or call.arguments.get("use_cache") is False:
        return call.forward()
    with lock_of(call.target):
        return _verify(call)


def _verify(call: Call) -> Any:
    cache = call.cache
    pending = _pending(cache)
    if pending is not None and not pending.tree.is_chain:
        raise RuntimeRefusal("a verified tree is still pending on this cache: commit or crop it before the next verify")
    if call.tokens.shape[0] != 1:
        raise RuntimeRefusal(f"a batch of {call.tokens.shape[0]} cannot be verified; one sequence at a time")
    store_every_token(cache)
    start, size, mask = length(cache), call.size, call.arguments.get("attention_mask")
    if start == 0:
        return _prefilled(call)
    check_complete(cache)
    tree = read_tree(mask, start, size, call.arguments.get("position_ids"))
    # The chain's record is lost with the chain: what an exception puts back must hold it.
    before = Snapshot(cache, own_states=False) if pending is not None else None
    try:
        if pending is not None:
            _settle(cache, pending, range(pending.tree.size))
        output, record = _guarded(call, start, Block(call, start, tree))
    except BaseException:
        if before is not None:
            before.restore(cache)
        raise
    cache.__dict__[PENDING] = record
    return output


def _prefilled(call: Call) -> Any:
    cache, target = call.cache, call.target
    if COUNT in cache.__dict__ and any_state(cache):
        raise RuntimeRefusal(
            f"this {type(cache).__name__} holds states of tokens that it did not count: a forward went past the "
            "runtime. Prefill through verify"
        )
    mask = additive(call.arguments.get("attention_mask"), dtype_of(target))
    if isinstance(mask, Tensor) and mask.ndim == 4 and not is_causal(mask) and plan_of(target).facts.mixers.stateful:
        raise RuntimeRefusal(
            f"a mask that is not causal on the empty cache of {type(target).__name__}, whose layers keep states that "
            "no mask reaches: prefill the prompt first, then verify the tree"
        )
    return _guarded(call.changed(attention_mask=mask) if mask is not None else call, 0, None)[0]


def _guarded(call: Call, start: int, block: Block | None) -> tuple[Any, Record | None]:
    """Runs a prefill (no block) or a block; puts the cache back after an exception, or if it took no tokens."""
    cache = call.cache
    plan = plan_of(call.target) if block is not None and block.tree.size > 1 else None
    strategy = plan.strategy if plan is not None else None
    if strategy is not None:
        tell(call.target, strategy.name)
    last = start + max(block.tree.depths) if block is not None else start
    if plan is not None and needs_single_steps(plan.facts.config, start, last):
        strategy = Steps()
    before = Snapshot(cache, own_states=strategy is None or strategy.updates_states)
    try:
        record: Record | None = None
        if block is None:
            output = call.forward()
        elif plan is None or strategy is None:
            output, record = call.changed(attention_mask=None).forward(), SingleRecord(start, before)
        else:
            output, record = strategy.run(plan.facts, block)
        held = length(cache)
        if held != start + call.size:
            raise RuntimeRefusal(
                f"{type(call.target).__name__} left {held} tokens in its cache instead of {start + call.size}: "
                f"it did not use the cache given as {call.cache_name!r}"
            )
    except BaseException:
        before.restore(cache)
        raise
    return output, record


def _pending(cache: Any) -> Any:
    """The record of the block at the cache's end, if there is one.

    A plain forward since then has run behind all of the block. It is part of the text then, or, where states were not
    at its end or siblings lie in it, what the forward gave is wrong.
    """
    if not hasattr(cache, "__dict__"):
        raise RuntimeRefusal(f"a {type(cache).__name__} was given as the cache; make one with new_cache(target)")
    record = cache.__dict__.get(PENDING)
    if record is None or length(cache) == record.start + record.tree.size:
        return record
    if record.tree.is_chain and is_attention_only(cache):
        cache.__dict__.pop(PENDING)
        return None
    raise RuntimeRefusal(
        f"the cache holds {length(cache)} tokens, the verified block ended at {record.start + record.tree.size}: a "
        "forward ran past the runtime while the block was pending, and its output is wrong. Commit or crop first"
    )


def _settle(cache: Any, record: Any, path: Sequence[int]) -> None:
    record.keep(cache, tuple(path))
    cache.__dict__.pop(PENDING, None)
