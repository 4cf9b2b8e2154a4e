"""The worker's side: one task of a validation in one fork, JSON in and JSON out.

Tasks: "losslessness" (a share of the prompts), "situations", "faults", "bf16", "smoke" (a rung of the ladder),
"weights", "sampling" (a share of the modes), "long-run"; "slice" and "measure" (timed) run alone on the machine. The
front runs several of the others side by side and puts their results together.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from compatfix.introspect.classes import NoClass
from compatfix.introspect.tiny import TinyError
from compatfix.validate import bf16, faults, long_run, losslessness, measure, sampled, situations, sliced, weights
from compatfix.validate.bench import Bench, Mode, build_bench
from compatfix.validate.entries import TreeError
from compatfix.validate.judge_sampling import ALARM, MODES
from compatfix.validate.load_model import Incomplete
from compatfix.validate.observed import observed
from compatfix.validate.oracle import ORACLE
from compatfix.validate.plain import text_config
from compatfix.validate.references import make_reference
from compatfix.validate.sampler import Sampler
from compatfix.validate.tally import new_tally


class Progress(Protocol):
    def __call__(self, stage: str, done: int | None = None, total: int | None = None) -> None: ...


Args = dict[str, Any]
BF16_BUDGETS = 1
SMOKE_PROMPTS = (4, 9)


def run(args: Args, progress: Progress) -> dict[str, Any]:
    """Returns {"task", "subject", "observed", "result", "error", "seconds", "cpu_seconds"}.

    `error` is what keeps the tree from running at all.
    """
    began = time.perf_counter()
    task = args["task"]
    answer: dict[str, Any] = {"task": task, "subject": None, "result": None, "error": None, "observed": None}
    # Several tasks run side by side; what is timed runs alone, on as many threads as in use.
    torch.set_num_threads(args.get("threads") or (measure.threads_in_use() if task == "measure" else 1))
    try:
        progress(f"{task}: building models")
        # Where a dispatched target is kept on disk.
        with tempfile.TemporaryDirectory(prefix="compatfix-offload-") as scratch:
            bench = _bench({**args, "scratch": scratch}, progress)
            answer["result"] = TASKS[task](bench, args, progress)
            # Last, because the runtime chooses its strategy at its first use.
            answer["subject"] = subject(bench)
            answer["observed"] = observed(bench, args)
    except TreeError as error:
        answer["error"] = {"code": error.code, "message": str(error), "detail": error.detail}
    except (NoClass, TinyError) as error:
        answer["error"] = {"code": "CF013", "message": str(error), "detail": {}}
    except Incomplete as error:
        answer["error"] = {"code": "CF912", "message": str(error), "detail": error.detail}
    answer["seconds"] = time.perf_counter() - began
    answer["cpu_seconds"] = time.process_time()
    return answer


def _bench(args: Args, progress: Progress) -> Bench:
    if args["task"] == "slice":
        return sliced.load_slice(args, progress)
    if args["task"] in ("weights", "measure"):
        return weights.load_bench(args, progress)
    return build_bench(args, dtype=torch.bfloat16 if args["task"] == "bf16" else torch.float32)


def _losslessness(bench: Bench, args: Args, progress: Progress) -> dict[str, Any]:
    modes = bench.modes(args["budgets"])
    return losslessness.run_losslessness(bench, args["indices"], args["tokens"], modes, progress)


def _situations(bench: Bench, args: Args, progress: Progress) -> dict[str, Any]:
    modes = bench.modes(args["budgets"])
    return situations.run_situations(bench, modes, args["prompts"], args["tokens"], progress)


def _faults(bench: Bench, args: Args, progress: Progress) -> dict[str, Any]:
    return faults.run_faults(bench, bench.modes(args["budgets"][:1]), progress, only=args.get("only", ()))


def _bf16(bench: Bench, args: Args, progress: Progress) -> dict[str, Any]:
    # Verification may be slower in bf16: one tree says what several would.
    modes = bench.modes(args["budgets"][:BF16_BUDGETS])
    return bf16.run_bf16(bench, modes, args["prompts"], args["tokens"], progress)


def _sampling(bench: Bench, args: Args, progress: Progress) -> dict[str, Any]:
    modes = sampled.modes_of(bench, args["budgets"])[args["share"] :: args["shares"]]
    sampler = Sampler(args["temperature"], args["top_p"], args["top_k"])
    found = sampled.run_sampling(bench, modes, sampler, args["texts"], ALARM / MODES, progress)
    return {"sampler": str(sampler), **found}


def _long_run(bench: Bench, args: Args, progress: Progress) -> dict[str, Any]:
    return long_run.run_long(bench, bench.modes(args["budgets"]), args["tokens"], progress)


def _smoke(bench: Bench, args: Args, progress: Progress) -> dict[str, Any]:
    """A few prompts in every mode, to the first exception: the experience of whoever starts the code."""
    modes: list[Mode] = bench.modes(args["budgets"][:1])
    tallies = [new_tally(mode.name, "oracle", len(SMOKE_PROMPTS), args["tokens"]) for mode in modes]
    for index in SMOKE_PROMPTS:
        reference = make_reference(bench, index, args["tokens"])
        if reference.error is not None:
            return {"modes": tallies, "error": reference.error}
        for mode, tally in zip(modes, tallies, strict=True):
            progress(f"smoke, {mode.name}", SMOKE_PROMPTS.index(index), len(SMOKE_PROMPTS))
            run = losslessness.compare_one(bench, mode, tally, reference, args["tokens"], ORACLE)
            if run.error is not None:
                return {"modes": tallies, "error": run.error}
    return {"modes": tallies, "error": None}


TASKS: dict[str, Callable[[Bench, Args, Progress], dict[str, Any]]] = {
    "losslessness": _losslessness,
    "situations": _situations,
    "faults": _faults,
    "bf16": _bf16,
    "smoke": _smoke,
    "slice": sliced.run_slice,
    "weights": weights.run_weights,
    "measure": weights.run_timed,
    "sampling": _sampling,
    "long-run": _long_run,
}


def subject(bench: Bench) -> dict[str, Any]:
    """What was really run: classes, entry points, stubs, windows, and the strategy that the runtime chose."""
    tree = bench.tree
    tiny = bench.tiny
    return {
        "target_class": type(bench.target).__name__,
        "draft_class": type(bench.draft).__name__,
        "loader": tree.loader,
        "loader_place": tree.loader_place,
        "chain": tree.chain and f"{tree.chain.module}.{tree.chain.name}",
        "tree": tree.tree and f"{tree.tree.module}.{tree.tree.name}",
        "loop": tree.loop and tree.loop.name,
        "entry_points": entry_points(bench),
        "not_judged": list(tree.not_judged),
        "stubbed": list(tree.stubbed),
        "broken": tree.broken,
        "block": bench.block,
        "mask": bench.mask,
        "layer_ids": bench.layer_ids,
        "layers": getattr(text_config(bench.target), "num_hidden_layers", None),
        "windows": situations.windows(bench),
        "conv_kernel": situations.conv_kernel(bench),
        "seed": tiny.seed if tiny else bench.seed,
        "attention": tiny.attn if tiny else None,
        "has_runtime": tree.has_runtime,
        "runtime": _runtime_choice(bench),
    }


def entry_points(bench: Bench) -> list[dict[str, Any]]:
    """How each entry point was found and is called: what its parameters were taken for."""
    entries = {"chain": bench.tree.chain, "tree": bench.tree.tree, "loop": bench.tree.loop}
    return [
        {
            "kind": kind,
            "entry": entry.place,
            "named": entry.named,
            "roles": dict(entry.call.roles),
            "literals": dict(entry.call.literals),
            "result": {"field": entry.result.field, "only_new": entry.result.only_new},
            "defaults": [n for n in entry.signature.parameters if n not in entry.call.covered],
        }
        for kind, entry in entries.items()
        if entry is not None
    ]


def _runtime_choice(bench: Bench) -> dict[str, Any] | None:
    module = sys.modules.get("compatfix_runtime")
    if module is None or not hasattr(module, "describe"):
        return None
    try:
        described = module.describe(bench.target)
    except Exception:
        return None
    return {k: v for k, v in described.items() if v is None or isinstance(v, (str, int, float, bool))}
