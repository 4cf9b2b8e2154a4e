"""Watches one generation of a foreign tree from outside: what the target was asked, what the draft was given.

Nothing is known of the tree but that it calls the target (directly, or through the runtime's `verify`) and the draft.
From the target's forwards follow the drafted tree and the greedy walk through it; from the number of context rows
handed to the draft, how much of the walk was committed. So the text as generated so far is known at every draft call.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.validate.caches import RUNTIME, cache_argument
from compatfix.validate.oracle import Head, Oracle

HIDDEN = -1e4
NOISE_TOLERANCE = 1e-3


@dataclass
class Forward:
    """One call of the target as the tree made it. `committed` is the number of tokens behind its first one."""

    tokens: list[int]
    parents: list[int]
    argmax: list[int]
    committed: list[int]
    cache: Any = None
    logits: Tensor | None = None

    @property
    def depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def walk(self) -> list[int]:
        """The nodes that the target's own tokens walk through, the root first."""
        children: dict[tuple[int, int], int] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault((parent, self.tokens[node]), node)
        path = [0]
        while (node := children.get((path[-1], self.argmax[path[-1]]), -1)) >= 0:
            path.append(node)
        return path

    def path_to(self, node: int) -> list[int]:
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return path[::-1]


class Tamper:
    """A planted fault. Every method leaves things as they are; a fault overrides one."""

    def before_verify(self, watch: Watch, cache: Any) -> None:
        """At the start of a verification: the cache is what the tree's last commit left."""

    def inner(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """May change `kwargs` of any forward of the target inside a verification."""

    def after_verify(self, watch: Watch, forward: Forward, output: Any) -> None:
        """May change the output that the tree sees."""

    def after_draft(self, watch: Watch, cache: Any) -> None:
        """The draft's cache, before the next draft."""

    def around_draft(self, watch: Watch, call: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        """Calls the draft; may change the arguments by name, `given`, and what is returned."""
        return call(given)


@dataclass
class Watch:
    """Use `installed()` around generations and `begin()` before each."""

    target: nn.Module
    draft: nn.Module | None
    head: Head
    oracle: Oracle | None
    modules: Sequence[ModuleType]
    keep_logits: bool = False
    tamper: Tamper | None = None

    prompt: list[int] = field(default_factory=list)
    rounds: list[Forward] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    draft_lengths: list[int] = field(default_factory=list)
    last_draft: dict[str, Any] = field(default_factory=dict)
    draft_cache: Any = None
    mask: int | None = None
    noise: dict[str, Any] | None = None
    prefill: Forward | None = None
    forwards: int = 0
    lost: int = 0
    active: bool = False
    replace_draft: bool = False
    _depth: int = 0
    _current: Forward | None = None

    def begin(self, prompt: Sequence[int], *, replace_draft: bool) -> None:
        self.prompt, self.rounds, self.committed, self.counts = list(prompt), [], [], []
        self.features, self.draft_lengths, self.last_draft = [], [], {}
        self.draft_cache, self.noise = None, None
        self.prefill, self.forwards, self.lost = None, 0, 0
        self.replace_draft = replace_draft and self.oracle is not None
        self._depth, self._current = 0, None

    def owners(self) -> list[tuple[str, Any]]:
        """Models and caches that were seen in this generation, by whose they are."""
        forwards = (self.prefill, self._current, *self.rounds[-1:])
        targets = [("target's cache", f.cache) for f in forwards if f is not None and f.cache is not None]
        drafts = [("draft's cache", self.draft_cache)] if self.draft_cache is not None else []
        models = [("target", self.target)] + ([("draft", self.draft)] if self.draft is not None else [])
        return [*targets, *drafts, *models]

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Calls made inside are not the tree's."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before

    @contextmanager
    def installed(self) -> Iterator[Watch]:
        undo = self._wrap_runtime()
        handles = [
            self.target.register_forward_pre_hook(self._before, with_kwargs=True),
            self.target.register_forward_hook(self._after, with_kwargs=True),
        ]
        if self.draft is not None:
            self.draft.forward = self._draft_forward(self.draft.forward)
        self.active = True
        try:
            yield self
        finally:
            self.active = False
            if self.draft is not None:
                del self.draft.__dict__["forward"]
            for handle in handles:
                handle.remove()
            for module, name, value in undo:
                setattr(module, name, value)

    def _wrap_runtime(self) -> list[tuple[ModuleType, str, Any]]:
        """Wraps the runtime's functions where the tree's modules hold them, so that the tree's own calls are seen."""
        undo = []
        for module in self.modules:
            if module.__name__.startswith(RUNTIME + "."):
                continue  # the runtime's own calls are its own affair
            for name, value in list(vars(module).items()):
                home = getattr(value, "__module__", None) or ""
                if inspect.isfunction(value) and home.split(".")[0] == RUNTIME:
                    undo.append((module, name, value))
                    setattr(module, name, self._wrapped(value))
        return undo

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        is_verify = function.__name__ == "verify"

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return function(*args, **kwargs)
            outermost = self._depth == 0
            self._depth += 1
            try:
                if not (is_verify and outermost):
                    return function(*args, **kwargs)
                self._enter(args[1:], kwargs)
                return self._leave(function(*args, **kwargs))
            finally:
                self._depth -= 1

        return call

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.active:
            return None
        self.forwards += 1
        if self._depth == 0:
            self._enter(args, kwargs)
        current = self._current
        if current is None or self.prefill is None:
            return None
        if self.tamper is not None and cache_argument(args, kwargs) is not None:
            kwargs = dict(kwargs)
            self.tamper.inner(self, args, kwargs)
            return args, kwargs
        return None

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self.active and self._depth == 0:
            return self._leave(output)
        return None

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = _bind(self.target, args, kwargs)
        tokens = bound.get("input_ids")
        ids = tokens[0].tolist() if isinstance(tokens, Tensor) else []
        parents = parents_of(bound.get("attention_mask"), len(ids))
        cache = cache_argument(args, kwargs)
        if self.prefill is not None and not self.counts:
            # Nothing is drafted: plain decoding, a token a round.
            self.committed = [*self.prompt, *(forward.tokens[0] for forward in self.rounds)]
        self._current = Forward(ids, parents, [], list(self.committed), cache)
        if self.tamper is not None and self.prefill is not None and cache is not None:
            with self.quiet():
                self.tamper.before_verify(self, cache)

    def _leave(self, output: Any) -> Any:
        forward, self._current = self._current, None
        if forward is None:
            return output
        if self.prefill is None:
            forward.argmax = output.logits[0].argmax(-1).tolist()
            self.prefill = forward
            if self.tamper is not None:
                self.tamper.after_verify(self, forward, output)
            return output
        if output.logits.shape[1] != len(forward.tokens):
            return output
        forward.argmax = output.logits[0].argmax(-1).tolist()
        if self.tamper is not None:
            self.tamper.after_verify(self, forward, output)
            forward.argmax = output.logits[0].argmax(-1).tolist()
        if self.keep_logits:
            forward.logits = output.logits[0].detach().float().clone()
        self.rounds.append(forward)
        return output

    def _draft_forward(self, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        @functools.wraps(real)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return real(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            if "target_hidden" not in given or "noise_embedding" not in given:
                return real(*args, **kwargs)
            cache = cache_argument(args, kwargs)
            if cache is not None:
                self.draft_cache = cache
                if self.tamper is not None and self.features:
                    self.tamper.after_draft(self, cache)
                self.draft_lengths.append(int(cache.get_seq_length()))
            self._commit(given["target_hidden"], given["noise_embedding"])
            self._check_noise(given["noise_embedding"][0])
            output = real(*args, **kwargs) if self.tamper is None else self._tampered(real, signature, given)
            states = output if isinstance(output, Tensor) else output[0]
            self.last_draft = {
                "real": real,
                "through": self._through_runtime(),
                "arguments": {**given, "noise_embedding": given["noise_embedding"].clone()},
                "output": states.detach().clone(),
            }
            if not self.replace_draft or self.oracle is None or states.shape[1] < 2:
                return output
            slot = self.head.token_of(given["noise_embedding"][0, 0])
            wanted = self.oracle.states([*self.committed, slot], states.shape[1] - 1, len(self.counts) - 1)
            changed = states.clone()
            changed[0, 1:] = wanted.to(changed)
            return changed if isinstance(output, Tensor) else _with_first(output, changed)

        return forward

    def _tampered(self, real: Callable[..., Any], signature: inspect.Signature, given: dict[str, Any]) -> Any:
        def call(arguments: dict[str, Any]) -> Any:
            bound = inspect.BoundArguments(signature, arguments)
            return real(*bound.args, **bound.kwargs)

        assert self.tamper is not None
        return self.tamper.around_draft(self, call, dict(given))

    def _through_runtime(self) -> Callable[..., Any] | None:
        """How the tree just called the draft, where it is the runtime that gives the draft its masks."""
        function = getattr(sys.modules.get(RUNTIME), "draft_forward", None)
        return None if function is None or self._depth == 0 else functools.partial(function, self.draft)

    def following(self) -> int | None:
        """The target's token behind what is committed: the first of a block. None where it is not known."""
        forward = self.rounds[-1] if self.rounds else self.prefill
        if self.lost or forward is None or not self.counts:
            return None
        return forward.argmax[forward.walk()[self.counts[-1] - 1] if self.rounds else -1]

    def _check_noise(self, noise: Tensor) -> None:
        """The block's first row is the last committed token, the others the mask; the first that differs is kept."""
        first = self.following()
        if self.noise is not None or self.mask is None or first is None:
            return
        wanted = [first, *[self.mask] * (noise.shape[0] - 1)]
        embed: Any = self.target.get_input_embeddings()  # type: ignore[operator]
        rows = embed(torch.tensor([wanted], device=noise.device))[0].float()
        # By direction, as in Head: some families scale outside the module.
        alike = torch.nn.functional.cosine_similarity(noise.float(), rows, dim=-1)
        wrong = (alike < 1 - NOISE_TOLERANCE).nonzero()
        if len(wrong):
            row = int(wrong[0])
            self.noise = {"round": len(self.counts), "row": row, "expected": wanted[row]}

    def _commit(self, context: Tensor, noise: Tensor) -> None:
        """Takes note of what the tree committed since the last draft: as many tokens as new context rows."""
        count = int(context.shape[1])
        self.features.append(context[0].detach().clone())
        self.counts.append(count)
        if not self.rounds:
            if count != len(self.prompt):
                self.lost += 1
            self.committed = list(self.prompt)
            return
        last = self.rounds[-1]
        path = last.walk()[:count]
        if len(path) < count:
            # More was committed than the target's own tokens allow: on a chain it is clear what, on a tree it is not.
            self.lost += 1
            path = list(range(min(count, len(last.tokens))))
        self.committed += [last.tokens[node] for node in path]


def parents_of(mask: Any, size: int) -> list[int]:
    """Parents of the nodes as the mask's last columns tell them; a chain where there is no 4D mask."""
    if isinstance(mask, dict):
        mask = mask.get("full_attention", next((m for m in mask.values() if m is not None), None))
    chain = [node - 1 for node in range(size)]
    if not isinstance(mask, Tensor) or mask.ndim != 4 or mask.shape[-1] < size:
        return chain
    tail = mask[0, 0, -size:, -size:]
    visible = (tail if tail.dtype == torch.bool else tail > HIDDEN).tolist()
    ancestors = [[j for j in range(node) if visible[node][j]] for node in range(size)]
    return [max(found, key=lambda j: (len(ancestors[j]), j)) if found else -1 for found in ancestors]


def _bind(target: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in inspect.signature(target.forward).parameters if name != "self"]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _with_first(output: Any, first: Tensor) -> Any:
    if hasattr(output, "last_hidden_state"):
        output.last_hidden_state = first
        return output
    return type(output)((first, *output[1:]))
