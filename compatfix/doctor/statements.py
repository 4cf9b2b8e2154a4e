"""What was examined as sentences with their evidence, by topic; tables show what has rows. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.doctor.examined import Examined
from compatfix.doctor.facts import EAGER
from compatfix.doctor.findings import OWN_CODE
from compatfix.memory_plan import gigabytes
from compatfix.model import Statement
from compatfix.profiles import FastPath

NO_TARGET = "no target was given: fast paths and memory depend on it (--target MODEL)"


def statements_of(examined: Examined) -> tuple[Statement, ...]:
    return (*_environment(examined), *_fast_paths(examined), *_attention(examined), *_memory(examined))


def _environment(examined: Examined) -> Iterator[Statement]:
    topic, machine = "environment", examined.machine
    if machine is None:
        yield Statement(topic, "versions", f"python {examined.python}", "measured", {"python": examined.python})
        return
    text = f"python {machine.python}, torch {machine.torch} (built for {machine.build}), "
    text += f"transformers {machine.transformers}"
    value = {"python": machine.python, "torch": machine.torch, "build": machine.build}
    yield Statement(topic, "versions", text, "measured", {**value, "transformers": machine.transformers})
    if machine.disk_free is not None:
        text = f"{gigabytes(machine.disk_free)} free on disk at {machine.disk}, for weights that a dispatch offloads"
        yield Statement(topic, "disk", text, "measured", machine.disk_free)
    if not examined.target:
        yield Statement(topic, "target", NO_TARGET, "read")


def _fast_paths(examined: Examined) -> Iterator[Statement]:
    topic, observed = "fast paths", examined.observed
    if observed is None:
        return
    where = f"tiny {observed.class_name or 'model'} on {observed.device}"
    if observed.error is not None:
        yield Statement(topic, "raised", f"{where}: {observed.error}", "measured", observed.error)
    for path in observed.paths:
        text = _path_text(path, examined, observed.device)
        value = {"state": path.state, "called": list(path.called), "instead": list(path.substitutes)}
        yield Statement(topic, path.package, f"{path.package}: {text}", "measured", value)
    if not observed.paths and observed.error is None:
        yield Statement(topic, "none", f"{where}: its layers call no package of kernels", "measured", [])
    if observed.others:
        text = f"functions of other packages that are called: {', '.join(observed.others)}"
        yield Statement(topic, "others", text, "measured", list(observed.others))


def _path_text(path: FastPath, examined: Examined, device: str) -> str:
    instead = ", ".join(path.substitutes) or OWN_CODE
    if path.state == "used":
        return f"used ({', '.join(path.called)})"
    if path.state == "partly":
        return f"used in part ({', '.join(path.called)}); {instead} run on torch"
    state = {"absent": "not installed", "broken": "installed and broken", "works": f"installed, not called on {device}"}
    return f"{state[examined.state(path.package)]}; torch fallback is used ({instead})"


def _attention(examined: Examined) -> Iterator[Statement]:
    topic, attention = "attention", examined.attention
    if attention is None:
        return
    default = f"tiny {attention.class_name} on {attention.device}; the default is {attention.default}"
    yield Statement(topic, "default", default, "measured", attention.default)
    if attention.reference is None:
        text = "no layer keeps siblings apart even under eager attention: no implementation can honour a tree mask here"
        yield Statement(topic, "reference", text, "measured")
    else:
        text = f"held against {attention.reference}"
        if attention.reference == EAGER:
            text += ": recurrent layers take no mask, whatever the attention is (CF301)"
        yield Statement(topic, "reference", text, "measured", attention.reference)


def _memory(examined: Examined) -> Iterator[Statement]:
    plan = examined.plan
    if plan is None:
        return
    topic = "memory"
    text = f"{gigabytes(plan.total)} at {plan.context} tokens with a tree of {plan.tree_budget} nodes"
    yield Statement(topic, "total", text, "read", plan.total)
    yield Statement(topic, "verdict", plan.verdict, "read", plan.fits.where if plan.fits else None)
