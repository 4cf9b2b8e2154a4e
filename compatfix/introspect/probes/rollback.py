"""Questions about going on from a filled cache and about going back: where hybrids are wrong without an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from compatfix.introspect.probes.bench import BLOCK, JUNK, PROMPT, Bench, Found, difference, probe, snapshot
from compatfix.introspect.words import brief, one_line


@dataclass(frozen=True)
class Way:
    """One way to roll back that code in the wild uses: what is done before the junk is fed, and what after."""

    name: str
    after: Callable[[Any, int, int], None]
    before: Callable[[Any], None] = lambda cache: None


WAYS = (
    Way("crop(length)", lambda cache, kept, junk: cache.crop(kept)),
    Way("crop(-n)", lambda cache, kept, junk: cache.crop(-junk)),
    Way(
        "recording, then crop(-n)",
        lambda cache, kept, junk: cache.crop(-junk),
        lambda cache: cache.activate_past_recording(),
    ),
)


@probe
def block_equals_steps(bench: Bench) -> Found:
    """Does a multi-token forward on a filled cache give what single steps give?

    Prefills, then feeds the same block at once and one token at a time; the fault is a block with another first token.
    """
    together = bench.forward(bench.block, bench.prefill()).logits[0].float()
    gap = difference(together, bench.steps)
    # Plain decoding in one forward is the judge: noise is measured against it, so single steps are on trial too.
    ok = bench.judge(gap)
    numbers = {"difference": gap, "noise": bench.noise, "fault": bench.other}
    return Found(_says(ok, gap, bench), ok, numbers)


@probe
def crop_semantics(bench: Bench) -> Found:
    """What do a positive, a negative and a zero argument of crop mean?

    Each on its own copy of a cache that holds the prompt; the length left, or the exception.
    """
    cache = bench.prefill()
    value = {
        "positive": _crop_outcome(cache, PROMPT - 3),
        "negative": _crop_outcome(cache, -3),
        "zero": _crop_outcome(cache, 0),
    }
    keeps = "keeps that many" if value["positive"] == PROMPT - 3 else "removes that many"
    parts = [
        f"crop({PROMPT - 3}) of {PROMPT}: {_outcome(value['positive'], keeps)}",
        f"crop(-3): {_outcome(value['negative'], 'removes 3')}",
        f"crop(0): {_outcome(value['zero'], 'empties it' if value['zero'] == 0 else 'changes nothing')}",
    ]
    if len(set(value.values())) == 1:
        parts = [f"crop of anything, even 0: {_outcome(value['zero'], 'leaves')}"]
    return Found("; ".join(parts), None, value=value)


@probe
def rollback_restores_state(bench: Bench) -> Found:
    """Does crop bring the cache back to what it was?

    Prefills, feeds rejected tokens, rolls back in each way that the library's messages ask for, and compares the next
    logits with a run that never saw the rejected tokens; the fault is a cache that is not rolled back at all.
    """
    fault = _fault_of_keeping_junk(bench)
    ways: list[dict[str, Any]] = []
    for way in WAYS:
        cache = bench.new_cache()
        try:
            way.before(cache)
            bench.forward(bench.prompt, cache)
            bench.forward(bench.junk, cache)
            way.after(cache, PROMPT, JUNK)
            length = int(cache.get_seq_length())
            if length != PROMPT:
                ways.append({"way": way.name, "outcome": f"leaves {length} of {PROMPT} tokens", "ok": False})
                continue
            gap = difference(_continue(bench, cache), bench.steps)
            ok = bench.judge(gap, fault)
            outcome = {True: "exact", False: "wrong logits", None: "undecided"}[ok]
            ways.append({"way": way.name, "outcome": outcome, "ok": ok, "difference": gap})
        except Exception as error:
            ways.append({"way": way.name, "outcome": one_line(error), "ok": False})
    exact = [w["way"] for w in ways if w["ok"]]
    wrong = [w for w in ways if w["outcome"] == "wrong logits"]
    numbers = {"noise": bench.noise, "fault": fault}
    if wrong or exact:
        numbers["difference"] = max([w["difference"] for w in wrong] or [w["difference"] for w in ways if w["ok"]])
    undecided = not exact and not wrong and any(w["ok"] is None for w in ways)
    ok = None if undecided else bool(exact) and not wrong
    return Found(_rollback_text(exact, wrong, ways, bench.noise), ok, numbers, {"ways": ways})


@probe
def snapshot_restores_state(bench: Bench) -> Found:
    """Does a deep copy of the cache restore it?

    Copies after the prefill, feeds rejected tokens to the original, and goes on from the copy.
    """
    cache = bench.prefill()
    kept = snapshot(cache)
    bench.forward(bench.junk, cache)
    gap = difference(_continue(bench, kept), bench.steps)
    fault = _fault_of_keeping_junk(bench)
    ok = bench.judge(gap, fault)
    return Found(_says(ok, gap, bench), ok, {"difference": gap, "noise": bench.noise, "fault": fault})


def _continue(bench: Bench, cache: Any) -> Any:
    """Logits of the block, token by token, at the positions that follow the prompt whatever the cache claims."""
    rows = []
    for i in range(BLOCK):
        position = torch.tensor([[PROMPT + i]])
        rows.append(bench.forward(bench.block[:, i : i + 1], cache, position_ids=position).logits[0].float())
    return torch.cat(rows)


def _fault_of_keeping_junk(bench: Bench) -> float:
    cache = bench.prefill()
    bench.forward(bench.junk, cache)
    return difference(_continue(bench, cache), bench.steps)


def _crop_outcome(cache: Any, argument: int) -> int | str:
    throwaway = snapshot(cache)
    try:
        throwaway.crop(argument)
    except Exception as error:
        return one_line(error)
    return int(throwaway.get_seq_length())


def _outcome(result: int | str, meaning: str | None) -> str:
    return f"raises {brief(result, 60)}" if isinstance(result, str) else f"{meaning} ({result} left)"


def _says(ok: bool | None, gap: float, bench: Bench) -> str:
    if ok is None:
        return f"cannot tell: a planted fault moves the logits as little as this does ({gap:.1e})"
    return f"{'yes' if ok else 'no'}: logits differ by {gap:.2g}, noise {bench.noise:.1e}"


def _rollback_text(exact: list[str], wrong: list[dict[str, Any]], ways: list[dict[str, Any]], noise: float) -> str:
    if exact and not wrong:
        return f"yes, with {exact[0]}"
    if wrong:
        worst = max(wrong, key=lambda way: way["difference"])
        return f"no: after {worst['way']} the next logits are off by {worst['difference']:.2g} (noise {noise:.1e})"
    undecided = next((way for way in ways if way["ok"] is None), None)
    if undecided is not None:
        return f"cannot tell: junk that stays moves the logits as little as {undecided['way']} does"
    return f"no: {ways[-1]['way']}: {brief(ways[-1]['outcome'])}"
