"""The worker's job "attention": which attention implementations honour a tree mask, each tried on a tiny model.

What is right comes from plain decoding over the tree's root paths. Where recurrent layers take no mask, whatever the
attention is, it comes from eager attention, held to the layers that it keeps apart.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from compatfix.doctor.facts import EAGER, PLAIN, Attention, Trial
from compatfix.introspect.devices import experiment_device
from compatfix.introspect.probes.bench import NOISE_FACTOR, Bench, difference
from compatfix.introspect.probes.masks import (
    leaks_of,
    path_logits,
    set_attention,
    tree_masks,
    tree_nodes,
    verify_tree,
)
from compatfix.introspect.words import one_line

KNOWN = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
FORMS = ("float", "bool")


@dataclass(frozen=True)
class Reference:
    """What a tree's logits are to be on one model, the arrangement of masks that gives it, and how it was found.

    `apart` are the layers in which eager attention keeps siblings apart.
    """

    how: str
    arrangement: int
    logits: torch.Tensor
    apart: tuple[int, ...]


def implementations(extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Those that are known, those that are registered in this process, and those that the user names."""
    registered: list[str] = []
    with contextlib.suppress(ImportError, AttributeError):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        registered = [name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "paged" not in name]
    return tuple(dict.fromkeys((*KNOWN, *sorted(registered), *extra)))


def try_attention(bench: Bench, names: Sequence[str], default: str, on_step: Any = lambda *_: None) -> Attention:
    """Tries every implementation with both forms of mask. An exception is an answer."""
    device = experiment_device()
    bench.model.to(device)
    class_name = type(bench.model).__name__
    with torch.inference_mode():
        found = reference_of(bench)
        trials: list[Trial] = []
        if found is not None:
            benches = [(bench, found)]
            for done, name in enumerate(names):
                on_step(f"attention {name}", done, len(names))
                trials += [_in_some_dtype(benches, name, form) for form in FORMS]
    return Attention(class_name, device.type, default, None if found is None else found.how, tuple(trials))


def reference_of(bench: Bench) -> Reference | None:
    """None where no layer keeps siblings apart even under eager attention."""
    with _attention(bench, "eager"):
        plain, best = path_logits(bench), None
        for arrangement, (_, mask) in enumerate(tree_masks(bench)):
            try:
                logits = verify_tree(bench, tree_nodes(bench), mask)
                leaks, _ = leaks_of(bench, mask)
            except Exception:  # this class wants another arrangement
                continue
            apart = tuple(i for i, leak in enumerate(leaks) if leak <= _limit(bench))
            if bench.judge(difference(logits, plain)):
                return Reference(PLAIN, arrangement, plain, apart)
            if apart and (best is None or len(apart) > len(best.apart)):
                best = Reference(EAGER, arrangement, logits, apart)
    return best


def _in_some_dtype(benches: list[tuple[Bench, Reference]], name: str, form: str) -> Trial:
    """In float32; in bfloat16 where that is refused, since some kernels take nothing wider."""
    first = _tried(*benches[0], name, form)
    if first.state != "refused":
        return first
    if len(benches) == 1:
        narrow = _narrow(benches[0][0])
        found = reference_of(narrow)
        if found is None:
            return first
        benches.append((narrow, found))
    second = _tried(*benches[1], name, form)
    return first if second.state == "refused" else second


def _narrow(bench: Bench) -> Bench:
    model = copy.deepcopy(bench.model).to(torch.bfloat16)
    return Bench(replace(bench.target, model=model), bench.real_config)


def _tried(bench: Bench, reference: Reference, name: str, form: str) -> Trial:
    dtype = str(bench.model.dtype).removeprefix("torch.")
    trial = Trial(name, form, "refused", "", dtype)
    compiled: list[str] = []
    try:
        with _attention(bench, name), _uncompiled(compiled):
            now = bench.model.config._attn_implementation
            if now == "eager" and name != "eager":
                return replace(trial, state="not taken", text=f"the class keeps {now}")
            mask = tree_masks(bench, form)[reference.arrangement][1]
            gap = difference(verify_tree(bench, tree_nodes(bench), mask), reference.logits)
            leaks, _ = leaks_of(bench, mask)
    except ImportError as error:
        return replace(trial, state="not installed", text=one_line(error))
    except Exception as error:
        return replace(trial, text=one_line(error))
    ignored = any(leaks[i] > _limit(bench) for i in reference.apart)
    verdict = False if ignored else bench.judge(gap)
    state = {True: "right", False: "wrong", None: "undecided"}[verdict]
    text = f"{gap:.2g} from {reference.how}"
    if ignored:
        text = f"siblings see one another as if there were no mask; {text}"
    if now != name:
        text += f"; {now} runs in its place"
    return replace(trial, state=state, text=text, difference=gap, ignored=ignored, uncompiled=bool(compiled))


def _limit(bench: Bench) -> float:
    return NOISE_FACTOR * bench.floor


@contextlib.contextmanager
def _attention(bench: Bench, name: str) -> Iterator[None]:
    """The implementation set, and eager again afterwards: every class has it."""
    set_attention(bench.model, "eager")
    try:
        set_attention(bench.model, name)
        yield
    finally:
        set_attention(bench.model, "eager")


@contextlib.contextmanager
def _uncompiled(asked: list[str]) -> Iterator[None]:
    """torch.compile gives functions back as they are: compiling one takes minutes on a CPU and changes no meaning.

    `asked` receives the modules that wanted to compile.
    """
    real = torch.compile

    def as_it_is(model: Any = None, *_: Any, **__: Any) -> Any:
        caller = inspect.currentframe()
        asked.append(str(caller.f_back.f_globals.get("__name__")) if caller and caller.f_back else "")
        return model if model is not None else lambda function: function

    torch.compile = as_it_is
    try:
        yield
    finally:
        torch.compile = real
