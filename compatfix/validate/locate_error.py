"""How far a generation came before it raised, and what the target's cache looked like then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compatfix.validate.bench import Bench, Run
from compatfix.validate.caches import first_difference, snapshot
from compatfix.validate.localise import TOLERANCE, layer_kind
from compatfix.validate.plain import PlainDecoder, uncached


def locate_error(bench: Bench, run: Run, prompt: Sequence[int], reference: Sequence[int]) -> dict[str, Any] | None:
    """The token that was due, what the draft had in its place, what plain decoding says there, and the cache's state.

    `got` is the drafted token that was to be rejected, else the runner-up of plain decoding. None where the generation
    came to its end and what it returned was not understood.
    """
    if run.error is not None and run.error.get("code"):
        return None
    watch = run.watch
    last = watch.rounds[-1] if watch.rounds else None
    done, drafted = 0, None
    if last is not None:
        path = last.walk()
        done = len(last.committed) - len(prompt) + len(path)
        drafted = next((last.tokens[n] for n, parent in enumerate(last.parents) if parent == path[-1]), None)
    text = [*prompt, *reference[:done]]
    with watch.quiet():
        best = uncached(bench.target, text).logits[-1].topk(2)
        found: dict[str, Any] = {
            "prompt_length": len(prompt),
            "round": len(watch.rounds),
            "index": done,
            "got": int(best.indices[1]) if drafted is None else drafted,
            "drafted": drafted is not None,
            "expected": int(best.indices[0]),
            "margin": float(best.values[0] - best.values[1]),
            "state": None,
        }
        if last is None or last.cache is None:
            return found
        decoder = PlainDecoder(bench.target, prompt)
        for token in reference[:done]:
            decoder.step(token)
        difference = first_difference(snapshot(last.cache), decoder.cache, len(text), TOLERANCE)
    if difference is not None:
        kind = layer_kind(bench, difference.layer)
        state = {"round": len(watch.rounds), "layer": difference.layer, "kind": kind, "tensor": difference.tensor}
        found["state"] = {**state, "difference": difference.largest, "note": difference.note}
    return found
