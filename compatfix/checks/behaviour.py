"""CF013, CF2xx, CF3xx, CF502: what was measured on the tiny model and would break published code."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.checks.finding import PATCH, found
from compatfix.model import Answer, Finding
from compatfix.profiles import Inspection


def rollback_is_not_exact(inspection: Inspection) -> Iterator[Finding]:
    answer = _failed(inspection, "rollback_restores_state")
    if answer is not None:
        message = f"crop does not bring the cache back: {answer.text.removeprefix('no: ')}"
        yield found("CF204", message, "measured", fix=PATCH, details=dict(answer.numbers))


def block_drops_state(inspection: Inspection) -> Iterator[Finding]:
    answer = _failed(inspection, "block_equals_steps")
    if answer is not None:
        message = f"a block on a filled cache differs from single steps: {answer.text.removeprefix('no: ')}"
        yield found("CF205", message, "measured", fix=PATCH, details=dict(answer.numbers))


def short_window_storage(inspection: Inspection) -> Iterator[Finding]:
    cache = inspection.target.cache
    sliding = cache.kinds.get("sliding", 0) if cache is not None else 0
    if cache is not None and sliding:
        count = sum(cache.kinds.values())
        message = f"{sliding} of {count} layers store only a window of {inspection.target.sliding_window} tokens"
        yield found("CF207", message, "measured", fix=PATCH)


def tree_mask_ignored(inspection: Inspection) -> Iterator[Finding]:
    answer = _failed(inspection, "tree_mask_reaches_every_layer")
    if answer is not None:
        message = f"a tree mask does not reach every layer: {answer.text.removeprefix('no: ')}"
        yield found("CF301", message, "measured", fix=PATCH, details=dict(answer.numbers))


def no_exact_strategy(inspection: Inspection) -> Iterator[Finding]:
    answer = _failed(inspection, "strategy_is_exact")
    if answer is not None:
        yield found("CF302", f"no verification strategy agrees with plain decoding: {answer.text}", "measured")


def cache_argument_renamed(inspection: Inspection) -> Iterator[Finding]:
    argument = inspection.target.value("cache_argument", "argument")
    if argument is None or argument == "past_key_values":
        return
    filled = inspection.target.value("cache_argument", "filled", {}).get("past_key_values")
    state = "still works and is to be removed" if filled in (True, "deprecated") else "leaves the cache empty"
    message = f"the forward takes its cache as {argument}=; past_key_values= {state}"
    yield found("CF502", message, "measured", fix=PATCH)


def probe_failed(inspection: Inspection) -> Iterator[Finding]:
    for answer in inspection.target.answers:
        if answer.error is not None:
            message = f"{answer.question} Not measured: {answer.error}"
            yield found("CF013", message, "measured", details={"probe": answer.probe})


def _failed(inspection: Inspection, probe: str) -> Answer | None:
    """The answer, if the experiment ran to its end and the news is bad."""
    answer = inspection.target.answer(probe)
    return answer if answer is not None and answer.ok is False and answer.error is None else None
