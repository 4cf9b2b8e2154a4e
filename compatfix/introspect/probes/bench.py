"""What probes share: a tiny model with fixed texts, its caches, its noise, and the rule by which numbers are judged."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from compatfix.introspect.caches import cache_argument_of, cache_class_of, cache_of, empty_cache
from compatfix.introspect.tiny import TinyTarget
from compatfix.introspect.words import one_line
from compatfix.model import Answer

PROMPT, BLOCK, JUNK = 14, 6, 5
# A difference passes up to four times the noise, provided that a planted fault shows eight times as much.
NOISE_FACTOR, FAULT_FACTOR = 4.0, 8.0


@dataclass(frozen=True)
class Found:
    """What an experiment found, before it is signed with the question that it answers."""

    text: str
    ok: bool | None
    numbers: Mapping[str, float] = field(default_factory=dict)
    value: Any = None


def probe(experiment: Callable[[Bench], Found]) -> Callable[[Bench], Answer]:
    """Makes an experiment into a probe: named after the function, asking its docstring's first line."""
    question = (inspect.getdoc(experiment) or experiment.__name__).splitlines()[0]

    @functools.wraps(experiment)
    def ask(bench: Bench) -> Answer:
        try:
            with torch.inference_mode():
                found = experiment(bench)
        except Exception as error:
            return Answer(
                experiment.__name__, question, f"not answered: {one_line(error)}", False, error=one_line(error)
            )
        return Answer(experiment.__name__, question, found.text, found.ok, found.numbers, found.value)

    return ask


class Bench:
    """A tiny model set up for experiments: one prompt, one block that follows it, and junk to be rejected."""

    def __init__(self, target: TinyTarget, real_config: Any, seed: int = 0) -> None:
        self.target = target
        self.model = target.model
        self.real_config = real_config
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, len(target.plain_tokens), (1, PROMPT + BLOCK + JUNK), generator=generator)
        self.prompt, self.block, self.junk = torch.split(ids, [PROMPT, BLOCK, JUNK], dim=1)
        self.text = ids[:, : PROMPT + BLOCK]
        self.argument = cache_argument_of(self.model)

    def new_cache(self) -> Any:
        """The library's own cache for this model, empty: built from its config, as generation does."""
        return empty_cache(self.cache_class, self.model.config)

    @functools.cached_property
    def cache_class(self) -> Any:
        """The class of the cache that the model makes itself when it is given none."""
        with torch.inference_mode():
            return cache_class_of(cache_of(self.model(input_ids=self._moved(self.prompt), use_cache=True)))

    def forward(self, ids: torch.Tensor, cache: Any = None, **kwargs: Any) -> Any:
        """One forward at the positions that follow what the cache holds, on the device where the model is."""
        ids, kwargs = self._moved(ids), {name: self._moved(value) for name, value in kwargs.items()}
        if cache is None:
            return self.model(input_ids=ids, use_cache=kwargs.pop("use_cache", False), **kwargs)
        if "position_ids" not in kwargs:
            start = int(cache.get_seq_length())
            kwargs["position_ids"] = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        return self.model(input_ids=ids, use_cache=True, **{self.argument: cache}, **kwargs)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._moved(part) for name, part in value.items()}
        return value.to(self.model.device) if isinstance(value, torch.Tensor) else value

    def prefill(self, ids: torch.Tensor | None = None) -> Any:
        cache = self.new_cache()
        self.forward(self.prompt if ids is None else ids, cache)
        return cache

    @functools.cached_property
    def plain(self) -> torch.Tensor:
        """Logits of prompt and block in one forward without a cache, (tokens, vocabulary)."""
        with torch.inference_mode():
            return logits_of(self.forward(self.text))

    @functools.cached_property
    def steps(self) -> torch.Tensor:
        """Logits of the block by plain decoding: one token at a time on a filled cache, (BLOCK, vocabulary)."""
        with torch.inference_mode():
            return self.decode(self.prefill(), self.block)

    def decode(self, cache: Any, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([logits_of(self.forward(ids[:, i : i + 1], cache)) for i in range(ids.shape[1])])

    @functools.cached_property
    def noise(self) -> float:
        """How far plain decoding is from itself in another shape: one at a time, at once, and in a batch of three."""
        with torch.inference_mode():
            batch = self.forward(self.text.expand(3, -1)).logits[1].float()
        return max(difference(self.steps, self.plain[PROMPT:]), difference(batch, self.plain))

    @functools.cached_property
    def floor(self) -> float:
        """The noise, and no less than a step of the dtype at the scale of the logits: differences of zero happen."""
        return max(self.noise, float(self.plain.abs().max()) * torch.finfo(self.model.dtype).eps)

    @functools.cached_property
    def other(self) -> float:
        """How far another token moves the logits that follow it: the size of a gross mistake."""
        changed = self.text.clone()
        changed[0, PROMPT] = changed[0, PROMPT] % (len(self.target.plain_tokens) - 1) + 1
        with torch.inference_mode():
            return difference(logits_of(self.forward(changed))[PROMPT + 1 :], self.plain[PROMPT + 1 :])

    def judge(self, found: float, fault: float | None = None) -> bool | None:
        """Whether `found` is noise. None where the planted fault is too faint for the experiment to tell."""
        fault = self.other if fault is None else fault
        if found > NOISE_FACTOR * self.floor:
            return False
        return True if found <= fault / FAULT_FACTOR else None


def logits_of(output: Any) -> torch.Tensor:
    return output.logits[0].float()  # type: ignore[no-any-return]


def difference(one: torch.Tensor, two: torch.Tensor) -> float:
    """The largest absolute difference; NaN in either counts as infinite."""
    gap = (one.float() - two.float()).abs().max().item()
    return gap if gap == gap else float("inf")


def snapshot(cache: Any) -> Any:
    """A deep copy: states are updated in place, so nothing less keeps them."""
    return copy.deepcopy(cache)
