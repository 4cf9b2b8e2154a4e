"""The worker's job "fast paths": which functions the layers of a tiny model really call, by watching a forward."""

from __future__ import annotations

from typing import Any

import torch

from compatfix.doctor.facts import Observed
from compatfix.introspect.devices import experiment_device
from compatfix.introspect.kernel_calls import Calls, fast_paths, top
from compatfix.introspect.probes import Bench
from compatfix.introspect.skeleton import decoder_layers_path, kernel_packages
from compatfix.introspect.tiny import TinyError
from compatfix.introspect.words import one_line
from compatfix.packages import BY_MODULE

NEW_TOKENS = 3


def observe(bench: Bench) -> Observed:
    """Watches what decoding is made of: the library's own generation, then several tokens on a filled cache."""
    device = experiment_device()
    bench.model.to(device)
    calls, error = Calls(), None
    with torch.inference_mode(), calls:
        try:
            bench.model.generate(bench.prompt.to(device), max_new_tokens=NEW_TOKENS, do_sample=False)
        except Exception as raised:
            error = raised
        try:
            bench.forward(bench.block, bench.prefill())
        except Exception as raised:
            # What a cache lacks is no fault of the environment; an exception in a kernel is.
            error = error or (raised if culprit(raised) else None)
    wanted = kernel_packages(bench.model, decoder_layers_path(bench.model))
    paths, others = fast_paths(calls, bench.model, wanted)
    return Observed(
        type(bench.model).__name__,
        device.type,
        paths,
        others,
        None if error is None else one_line(error),
        None if error is None else culprit(error),
    )


def attempt(build: Any) -> Bench | Observed:
    """A bench, or why there is none: the tiny model runs forwards while it is built, and a kernel may raise in them."""
    try:
        bench: Bench = build()
        return bench
    except TinyError as error:
        cause = error.__cause__ or error
        return Observed("", experiment_device().type, error=str(error), culprit=culprit(cause))
    except Exception as error:
        return Observed("", experiment_device().type, error=one_line(error), culprit=culprit(error))


def culprit(error: BaseException) -> str | None:
    """The known package in whose code an exception was raised, innermost first."""
    trace, found = error.__traceback__, None
    while trace is not None:
        spec = BY_MODULE.get(top(str(trace.tb_frame.f_globals.get("__name__"))))
        if spec is not None and spec.name not in ("torch", "transformers"):
            found = spec.name
        trace = trace.tb_next
    return found
