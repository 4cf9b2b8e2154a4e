"""Finds the first place where a wrong generation leaves plain decoding: the round, the layer, the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compatfix.validate.bench import Bench, Mode
from compatfix.validate.caches import first_difference, snapshot
from compatfix.validate.oracle import Profile
from compatfix.validate.plain import PlainDecoder
from compatfix.validate.watch import Forward, Tamper

TOLERANCE = 1e-3


class Found(Exception):
    """Ends the generation: what comes after the first difference says nothing new."""


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
) -> dict[str, Any] | None:
    """Generates again; at the start of every verification the target's cache is compared with plain decoding's.

    Returns None where the caches never differ: then the fault is not in the cache.
    """
    found: list[dict[str, Any]] = []
    decoders: list[PlainDecoder] = []

    def look(forward: Forward, cache: Any) -> None:
        if not forward.committed:
            return
        seen = snapshot(cache)
        with bench.watch.quiet():
            if not decoders:
                decoders.append(PlainDecoder(bench.target, prompt))
            decoder = decoders[0]
            for token in forward.committed[len(decoder.tokens) :]:
                decoder.step(token)
            difference = first_difference(seen, decoder.cache, len(decoder.tokens), TOLERANCE)
        if difference is not None:
            found.append(
                {
                    # The state is wrong when this round begins, so the round before it left it so.
                    "round": len(bench.watch.rounds),
                    "committed": len(forward.committed) - len(prompt),
                    "layer": difference.layer,
                    "kind": layer_kind(bench, difference.layer),
                    "tensor": difference.tensor,
                    "difference": difference.largest,
                    "scale": difference.scale,
                    "note": difference.note,
                }
            )
            raise Found

    bench.watch.on_state = look
    try:
        bench.run(mode, prompt, tokens, reference=reference, profile=profile, salt=salt, tamper=tamper)
    finally:
        bench.watch.on_state = None
    return found[0] if found else None


def layer_kind(bench: Bench, layer: int) -> str | None:
    """What the target's config calls a layer, where it says so."""
    config: Any = bench.target.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None) or ()
    return str(kinds[layer]) if layer < len(kinds) else None
