"""One long text per mode: how the state of the target's cache and its logits drift from plain decoding.

Rounding adds up over a text, and so does a fault too small for short ones. Plain decoding drifts from itself too (token
by token, in one pass, without a cache), and that noise is measured here on a text of the same length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from compatfix.validate.bench import Bench, Mode, Run
from compatfix.validate.caches import CacheDifference, differences, settled, snapshot
from compatfix.validate.losslessness import warm_up
from compatfix.validate.oracle import ORACLE
from compatfix.validate.plain import PlainDecoder, uncached
from compatfix.validate.watch import Forward, Tamper, Watch

CHECKPOINTS = 8
PROMPT = 4

Snapshot = dict[tuple[int, str, Any], Tensor]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PlainText:
    """A plain text, longer than asked by a block, and the noise of plain decoding by eighth of it."""

    prompt: list[int]
    tokens: list[int]
    state_noise: list[float]
    logit_noise: list[float]


def run_long(bench: Bench, modes: Sequence[Mode], tokens: int, report: Report) -> dict[str, Any]:
    """Returns {"tokens", "prompt_length", "unit", "noise": by eighth, "modes": one row each}."""
    warm_up(bench, modes)
    report("long run, plain decoding", 0, len(modes) + 1)
    text = _plain_text(bench, bench.prompt(PROMPT), tokens)
    rows = []
    for number, mode in enumerate(modes, start=1):
        report(f"long run, {mode.name}", number, len(modes) + 1)
        rows.append(_mode(bench, mode, text, tokens))
    unit = torch.finfo(next(bench.target.parameters()).dtype).eps
    pairs = zip(text.state_noise, text.logit_noise, strict=True)
    noise = [{"state": state, "logits": logits} for state, logits in pairs]
    return {"tokens": tokens, "prompt_length": len(text.prompt), "unit": unit, "noise": noise, "modes": rows}


def _plain_text(bench: Bench, prompt: list[int], tokens: int) -> PlainText:
    decoder = PlainDecoder(bench.target, prompt)
    rows = [decoder.logits.float()]
    text = [int(rows[0].argmax())]
    marks = _marks(tokens)
    states = []
    while len(text) < tokens + bench.block:
        rows.append(decoder.step(text[-1]).float())
        if len(text) in marks:
            states.append(_relative(_worst(snapshot(decoder.cache), PlainDecoder(bench.target, decoder.tokens))))
        text.append(int(rows[-1].argmax()))
    alone = uncached(bench.target, [*prompt, *text[:-1]]).logits[len(prompt) - 1 :]
    apart = _apart(torch.stack(rows), alone).tolist()
    return PlainText(prompt, text, states, [max(apart[a:b]) for a, b in zip([0, *marks], marks, strict=False)])


def _marks(tokens: int) -> list[int]:
    """How many tokens behind the prompt each eighth of a text ends."""
    return [max(1, tokens * (number + 1) // CHECKPOINTS) for number in range(CHECKPOINTS)]


def _mode(bench: Bench, mode: Mode, text: PlainText, tokens: int) -> dict[str, Any]:
    """The last checkpoint lies a block before the end, which not every text's last round reaches."""
    marks = [max(1, mark - bench.block) for mark in _marks(tokens)]
    look = _Look(len(text.prompt), marks)
    run = bench.run(mode, text.prompt, tokens, reference=text.tokens, profile=ORACLE, salt=PROMPT, tamper=look)
    taken = [(run.watch.rounds[at], seen) for at, seen in look.taken if at < len(run.watch.rounds)]
    return {
        "mode": mode.name,
        "error": run.error,
        "produced": len(run.tokens),
        "same": run.tokens == text.tokens[:tokens],
        "lost": run.watch.lost,
        "rounds": len(run.watch.rounds),
        "points": _points(bench, text.prompt, taken),
        **_farthest_behind(bench, run, text.prompt),
    }


class _Look(Tamper):
    """Changes nothing: copies the target's cache, and has logits kept, where a checkpoint is reached.

    Before the verification, because inside it the runtime may withhold states; and a chain that is still pending then
    is committed in the copy, as the verification is about to do.
    """

    def __init__(self, prompt: int, marks: Sequence[int]) -> None:
        self._prompt, self._marks = prompt, marks
        self.taken: list[tuple[int, Snapshot]] = []

    def before_verify(self, watch: Watch, cache: Any) -> None:
        length = len(watch.committed)
        done = len(self.taken)
        watch.keep_logits = done < len(self._marks) and length >= self._prompt + self._marks[done]
        if watch.keep_logits:
            copied = settled(cache, length)
            # A checkpoint that is missing keeps the run from counting.
            if copied is not None:
                self.taken.append((len(watch.rounds), snapshot(copied)))


def _points(bench: Bench, prompt: Sequence[int], taken: Sequence[tuple[Forward, Snapshot]]) -> list[dict[str, Any]]:
    """After the run: a forward inside a verification would be taken for a part of it."""
    points = []
    with bench.watch.quiet():
        decoder = PlainDecoder(bench.target, prompt)
        for forward, seen in taken:
            for token in forward.committed[len(decoder.tokens) :]:
                decoder.step(token)
            worst = _worst(seen, decoder)
            plain = decoder.step(forward.tokens[0]).float()
            where = {"layer": worst.layer, "tensor": worst.tensor, "note": worst.note} if worst else {}
            logits = None if forward.logits is None else float(_apart(forward.logits[0], plain))
            committed = len(forward.committed) - len(prompt)
            points.append({"committed": committed, "state": _relative(worst), "logits": logits, **where})
    return points


def _farthest_behind(bench: Bench, run: Run, prompt: Sequence[int]) -> dict[str, Any]:
    """The token that lies farthest behind the best one of plain decoding of the text before it: 0 in a greedy text."""
    if not run.tokens:
        return {"behind": None, "index": None}
    with bench.watch.quiet():
        logits = uncached(bench.target, [*prompt, *run.tokens[:-1]]).logits[len(prompt) - 1 :]
    chosen = logits.gather(-1, torch.tensor(run.tokens, device=logits.device)[:, None])[:, 0]
    behind = (logits.amax(-1) - chosen).nan_to_num(torch.inf)
    return {"behind": float(behind.max()), "index": int(behind.argmax())}


def _worst(seen: Snapshot, decoder: PlainDecoder) -> CacheDifference | None:
    found = differences(seen, decoder.cache, len(decoder.tokens))
    return max(found, key=lambda difference: difference.relative, default=None)


def _relative(difference: CacheDifference | None) -> float:
    return 0.0 if difference is None else difference.relative


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """The largest distance of each row of logits, what is not a number counting as infinite."""
    return (one - other).abs().nan_to_num(torch.inf).amax(-1)
