"""Timed runs on real weights: plain decoding, chain and trees side by side, with as little in the way as can be.

Three kinds of runs that never mix. Counted runs are watched, since rounds and forwards are counted there; one run per
mode counts how often the host looks at values; timed runs carry one hook, which stamps the end of the prefill and is
gone before decoding begins.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from compatfix.validate.bench import PLAIN, Bench, Mode, describe
from compatfix.validate.devices import input_device
from compatfix.validate.plain import PlainDecoder, text_config
from compatfix.validate.sampled import arguments
from compatfix.validate.sampler import Sampler
from compatfix.validate.transfers import counted_transfers

# A second series of plain decoding, which differs from the first by noise alone, and the library's own plain decoding.
AGAIN, LIBRARY = "plain again", "library"
WARM_UPS = 1
PLACES = 5

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Contender:
    """`mode` None is plain decoding without the tree."""

    name: str
    mode: Mode | None


@dataclass(frozen=True)
class Settings:
    """`stops` end a text as they would in use; `sampler` holds what to pass by mode, empty for greedy."""

    prompts: Sequence[Sequence[int]]
    tokens: int
    stops: list[int]
    sampler: Sampler | None
    seed: int


@dataclass
class Timed:
    """One timed run. Prefill ends when the target has seen the whole prompt; drawing the first token is decoding."""

    mode: str
    prompt: int
    repetition: int
    prefill_seconds: float | None
    decode_seconds: float
    tokens: int
    stage_seconds: dict[str, float] = field(default_factory=dict)


def run_measure(
    bench: Bench,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int],
    tokens: int,
    repetitions: int,
    sampler: Sampler | None,
    seconds: float | None,
    report: Report,
) -> dict[str, Any]:
    """What docs/report-schema.md calls raw: counts by mode and one entry per timed run.

    After `seconds` no further repetition is begun that would probably end later; at least one is run.
    """
    began = time.perf_counter()
    settings = Settings(prompts, tokens, stop_tokens(bench.target), sampler, bench.seed)
    contenders, errors = _contenders(bench, budgets, settings)
    counted: list[dict[str, Any]] = []
    for contender in list(contenders):
        report(f"measure, {contender.name}: warm-up and counts", len(counted), len(contenders))
        try:
            for _ in range(WARM_UPS):
                _timed(bench, contender, 0, -1, settings)
            if contender.name != AGAIN:
                counted.append(_counted(bench, contender, settings))
        except Exception as error:
            errors[contender.name] = _described(bench, error)
            contenders.remove(contender)
    runs: list[Timed] = []
    done = 0
    # What is alive stays; collections within a run then cost what they would cost in use.
    gc.collect()
    gc.freeze()
    try:
        while contenders and done < repetitions:
            started = time.perf_counter()
            runs += _repetition(bench, contenders, done, repetitions, settings, errors, report)
            contenders = [contender for contender in contenders if contender.name not in errors]
            done += 1
            now = time.perf_counter()
            if seconds is not None and now - began + (now - started) > seconds:
                break
    finally:
        gc.unfreeze()
    return {
        **_surroundings(bench),
        "prompts": len(prompts),
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "tokens": tokens,
        "planned": repetitions,
        "repetitions": done,
        "warm_ups": WARM_UPS,
        "sampler": None if sampler is None else str(sampler),
        "stop_tokens": settings.stops,
        "counted": counted,
        "runs": [asdict(run) for run in runs],
        "errors": errors,
    }


def threads_in_use() -> int:
    """As many as a script would get: OMP_NUM_THREADS, or else the processors that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked):
        return int(asked)
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def stop_tokens(target: nn.Module) -> list[int]:
    """What ends a text of this target in use: its generation config's tokens, or else its config's."""
    for config in (getattr(target, "generation_config", None), text_config(target)):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return [int(token) for token in found] if isinstance(found, (list, tuple)) else [int(found)]
    return []


def _contenders(
    bench: Bench, budgets: Sequence[int], settings: Settings
) -> tuple[list[Contender], dict[str, dict[str, Any]]]:
    """Everything to be timed, and the modes that cannot sample as asked, with what they lack."""
    found, errors = [], {}
    modes = [PLAIN, *bench.modes(budgets)] if bench.tree.chain else bench.modes(budgets)
    for mode in modes:
        lacks = None if settings.sampler is None else arguments(settings.sampler, bench.entry_point(mode)[1])
        if isinstance(lacks, str):
            errors[mode.name] = {"type": "UsageError", "message": f"takes no {lacks}", "place": None}
        else:
            found.append(Contender(mode.name, mode))
    if any(contender.mode == PLAIN for contender in found):
        found.append(Contender(AGAIN, PLAIN))
    if settings.sampler is None:
        found.append(Contender(LIBRARY, None))
    return found, errors


def _repetition(
    bench: Bench,
    contenders: Sequence[Contender],
    number: int,
    planned: int,
    settings: Settings,
    errors: dict[str, dict[str, Any]],
    report: Report,
) -> Iterator[Timed]:
    """Every prompt in every mode. The order moves on by one from prompt to prompt and turns round between repetitions,
    so that no mode is always first, and none always behind the same other one."""
    for prompt in range(len(settings.prompts)):
        report(f"measure, repetition {number + 1} of {planned}", prompt, len(settings.prompts))
        turn = (prompt + 2 * number) % len(contenders)
        order = [*contenders[turn:], *contenders[:turn]]
        for contender in reversed(order) if number % 2 else order:
            if contender.name in errors:
                continue
            gc.collect()
            try:
                yield _timed(bench, contender, prompt, number, settings)
            except Exception as error:
                errors[contender.name] = _described(bench, error)


def _timed(bench: Bench, contender: Contender, prompt: int, repetition: int, settings: Settings) -> Timed:
    text = list(settings.prompts[prompt])
    device = input_device(bench.target)
    _seed(settings, prompt)
    _synchronise(device)
    began = time.perf_counter()
    with _prefill_end(bench.target, len(text), device) as ended:
        result = _generate(bench, contender, text, settings)
        _synchronise(device)
        done = time.perf_counter()
    # Behind the clock: reading the text out is no part of generating it.
    tokens, stages = _read(bench, contender, text, result)
    prefilled = ended[0] if ended else None
    return Timed(
        contender.name,
        prompt,
        repetition,
        None if prefilled is None else prefilled - began,
        done - (began if prefilled is None else prefilled),
        tokens,
        stages,
    )


def _generate(bench: Bench, contender: Contender, text: list[int], settings: Settings) -> Any:
    if contender.mode is None:
        return _plainly(bench.target, text, settings)
    given = _sampling(bench, contender.mode, settings)
    ids = torch.tensor([text], device=input_device(bench.target))
    return bench.call(contender.mode, ids, settings.tokens, settings.stops, bench.mask, given)


def _read(bench: Bench, contender: Contender, text: list[int], result: Any) -> tuple[int, dict[str, float]]:
    """How many tokens were generated, and the tree's own times by stage."""
    if contender.mode is None:
        return int(result), {}
    output = bench.read(contender.mode, result, text)
    return len(output.tokens), dict(output.stage_times)


def _plainly(target: nn.Module, text: list[int], settings: Settings) -> int:
    """The number of tokens of plain greedy decoding without the tree."""
    decoder = PlainDecoder(target, text)
    count, token = 1, int(decoder.logits.argmax())
    while count < settings.tokens and token not in settings.stops:
        token = int(decoder.step(token).argmax())
        count += 1
    return count


def _sampling(bench: Bench, mode: Mode, settings: Settings) -> Mapping[str, float]:
    if settings.sampler is None:
        return {}
    given = arguments(settings.sampler, bench.entry_point(mode)[1])
    assert not isinstance(given, str)
    return given


def _counted(bench: Bench, contender: Contender, settings: Settings) -> dict[str, Any]:
    """Rounds and forwards on every prompt under watch, reads and peak memory on the first without one."""
    row: dict[str, Any] = {"mode": contender.name, "tokens": 0, "rounds": 0, "target_forwards": 0, "draft_forwards": 0}
    row |= {"lengths": [], "reads_per_round": None, "read_places": {}, "peak_bytes": None}
    if contender.mode is None:
        return row
    for prompt, text in enumerate(settings.prompts):
        _seed(settings, prompt)
        run = bench.run(
            contender.mode,
            list(text),
            settings.tokens,
            profile=None,
            stops=settings.stops,
            sampler=_sampling(bench, contender.mode, settings),
        )
        if run.error is not None:
            raise Raised(run.error)
        row["tokens"] += len(run.tokens)
        row["rounds"] += len(run.watch.rounds)
        # One forward is the prefill's.
        row["target_forwards"] += max(0, run.watch.forwards - 1)
        row["draft_forwards"] += len(run.watch.counts)
        # What the last round of a sampled text committed cannot be seen from the target's choice alone.
        row["lengths"] += run.lengths if settings.sampler is None else run.watch.counts[1:]
        if prompt == 0:
            rounds = len(run.watch.rounds)
    _add_reads(row, bench, contender, rounds, settings)
    return row


class Raised(Exception):
    """A watched run that raised; `described` is what `describe` said of it."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__(described["message"])
        self.described = described


def _described(bench: Bench, error: Exception) -> dict[str, Any]:
    return error.described if isinstance(error, Raised) else describe(bench.tree.root, error, bench.watch.owners())


def _add_reads(row: dict[str, Any], bench: Bench, contender: Contender, rounds: int, settings: Settings) -> None:
    device = input_device(bench.target)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        _timed(bench, contender, 0, -1, settings)
        row["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    text = list(settings.prompts[0])
    _seed(settings, 0)
    with counted_transfers() as found, _prefill_end(bench.target, len(text), device, found.reads.clear):
        _generate(bench, contender, text, settings)
    root = f"{bench.tree.root}/"
    row["reads_per_round"] = sum(found.reads.values()) / max(1, rounds)
    row["read_places"] = {place.removeprefix(root): times for place, times in found.reads.most_common(PLACES)}


@contextmanager
def _prefill_end(
    target: nn.Module, length: int, device: torch.device, then: Callable[[], None] = lambda: None
) -> Iterator[list[float]]:
    """Yields a list that gets the time at which the target had seen `length` tokens. The hook is gone from then on."""
    ended: list[float] = []
    seen = 0

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        nonlocal seen
        tokens = next((v for v in (kwargs.get("input_ids"), *args, kwargs.get("inputs_embeds")) if v is not None), None)
        seen += int(tokens.shape[1]) if isinstance(tokens, Tensor) and tokens.ndim > 1 else length
        if seen >= length:
            _synchronise(device)
            ended.append(time.perf_counter())
            handle.remove()
            then()

    handle = target.register_forward_hook(hook, with_kwargs=True)
    try:
        yield ended
    finally:
        handle.remove()


def _surroundings(bench: Bench) -> dict[str, Any]:
    device = input_device(bench.target)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "device_kind": device.type,
        "threads": torch.get_num_threads(),
        "dtype": str(next(bench.target.parameters()).dtype).removeprefix("torch."),
        "target": _size(bench.target),
        "draft": _size(bench.draft),
        "head_bytes": _head_bytes(bench),
    }


def _size(model: nn.Module) -> dict[str, int]:
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
    }


def _head_bytes(bench: Bench) -> int:
    """What the target's head adds to a draft's forward: a draft without a head of its own borrows it."""
    get: Any = getattr(bench.draft, "get_output_embeddings", lambda: None)
    try:
        own = get()
    except (AttributeError, NotImplementedError):
        own = None
    if own is not None:
        return 0
    head: Any = bench.target.get_output_embeddings()  # type: ignore[operator]
    return int(head.weight.numel() * head.weight.element_size())


def _seed(settings: Settings, prompt: int) -> None:
    """The same for a prompt in every mode and repetition."""
    torch.manual_seed(settings.seed * 10_007 + prompt)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
