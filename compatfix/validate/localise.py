"""Finds the first place where a wrong generation leaves plain decoding: the round, the layer, the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compatfix.validate.bench import Bench, Mode
from compatfix.validate.caches import first_difference, settled, snapshot
from compatfix.validate.oracle import Profile
from compatfix.validate.plain import PlainDecoder
from compatfix.validate.watch import Tamper, Watch

TOLERANCE = 1e-3


class Found(Exception):
    """Ends the generation: what comes after the first difference says nothing new."""


class Unsettled(Exception):
    """The runtime refuses to settle the cache, so that it cannot be compared."""


class _Look(Tamper):
    """Stands before every verification and compares; a planted fault keeps its place."""

    def __init__(self, bench: Bench, prompt: Sequence[int], fault: Tamper) -> None:
        self._bench, self._fault = bench, fault
        self._decoder: PlainDecoder | None = None
        self._prompt = list(prompt)
        self.found: dict[str, Any] | None = None
        for name in ("inner", "after_verify", "after_draft", "around_draft"):
            setattr(self, name, getattr(fault, name))

    def before_verify(self, watch: Watch, cache: Any) -> None:
        self._fault.before_verify(watch, cache)
        if not watch.committed:
            return
        self._decoder = self._decoder or PlainDecoder(watch.target, self._prompt)
        for token in watch.committed[len(self._decoder.tokens) :]:
            self._decoder.step(token)
        length = len(self._decoder.tokens)
        copied = settled(cache, length)
        if copied is None:
            raise Unsettled
        difference = first_difference(snapshot(copied), self._decoder.cache, length, TOLERANCE)
        if difference is None:
            return
        self.found = {
            # The state is wrong when this round begins, so the round before it left it so.
            "round": len(watch.rounds),
            "committed": len(watch.committed) - len(self._prompt),
            "layer": difference.layer,
            "kind": layer_kind(self._bench, difference.layer),
            "tensor": difference.tensor,
            "difference": difference.largest,
            "scale": difference.scale,
            "note": difference.note,
        }
        raise Found


def localise(
    bench: Bench,
    mode: Mode,
    prompt: Sequence[int],
    reference: Sequence[int],
    tokens: int,
    *,
    profile: Profile | None,
    salt: int,
    tamper: Tamper | None = None,
) -> tuple[bool, dict[str, Any] | None]:
    """Generates again; before every verification the target's cache is compared with plain decoding's.

    Returns whether it could be compared to the end, and the first difference: (True, None) says that the caches never
    differ, so that the fault is not in the cache.
    """
    look = _Look(bench, prompt, tamper or Tamper())
    run = bench.run(mode, prompt, tokens, reference=reference, profile=profile, salt=salt, tamper=look)
    return look.found is not None or run.error is None, look.found


def layer_kind(bench: Bench, layer: int) -> str | None:
    """What the target's config calls a layer, where it says so."""
    config: Any = bench.target.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None) or ()
    return str(kinds[layer]) if layer < len(kinds) else None
