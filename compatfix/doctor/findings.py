"""From what was examined to findings: what would stop a run here, what would slow it, what is worth knowing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compatfix.checks.finding import found
from compatfix.doctor.examined import Examined
from compatfix.doctor.facts import Trial
from compatfix.memory_plan import RESERVE, gigabytes
from compatfix.model import LEVELS, Finding, Level
from compatfix.packages import BY_NAME, QUANTISATION
from compatfix.profiles import FastPath

MISSING_KERNELS = {"flash-linear-attention": "CF002", "causal-conv1d": "CF003", "mamba-ssm": "CF002"}
OWN_CODE = "the layers' own torch code"


def findings_of(examined: Examined) -> tuple[Finding, ...]:
    """Every finding, the gravest first, in the order of codes within a level."""
    found_here = [finding for check in _CHECKS for finding in check(examined)]
    return tuple(sorted(found_here, key=lambda finding: (LEVELS.index(finding.level), finding.code)))


def broken_packages(examined: Examined) -> Iterator[Finding]:
    """Installed but broken is not installed; worse where something imports it unasked."""
    for package in examined.packages:
        if package.state != "broken":
            continue
        spec = BY_NAME[package.name]
        asked = package.name in QUANTISATION.get(_quantised(examined) or "", ())
        version = f" {package.version}" if package.version else ""
        message = f"{package.name}{version} is installed and cannot be imported: {package.error}"
        message += "" if spec.picked_up or asked else " (only met where a checkpoint asks for it)"
        level: Level = "error" if spec.picked_up or asked else "warning"
        fix = f"pip uninstall {package.name}, or install it anew: {spec.command}"
        yield found("CF014", message, "measured", fix=fix, level=level, details={"package": package.name})


def missing_packages(examined: Examined) -> Iterator[Finding]:
    if examined.state("accelerate") == "absent":
        message = "accelerate is not installed: device_map= in from_pretrained raises an ImportError"
        yield found("CF001", message, "measured", fix=BY_NAME["accelerate"].command)
    if examined.state("flash-attn") == "absent":
        message = "flash-attn is not installed: flash_attention_2 by name cannot be had"
        yield found("CF004", message, "measured", fix=f"{BY_NAME['flash-attn'].command} (needs CUDA), or use sdpa")
    method = _quantised(examined)
    loaders = QUANTISATION.get(method or "", ())
    if loaders and not any(examined.state(name) == "works" for name in loaders):
        message = f"the checkpoint is quantised by {method}, and no working {' or '.join(loaders)} is installed"
        yield found("CF019", message, "read", fix=BY_NAME[loaders[0]].command)


def unusable_gpu(examined: Examined) -> Iterator[Finding]:
    machine = examined.machine
    if machine is None or not machine.gpu_seen or machine.gpu_error is None:
        return
    message = f"this machine has an NVIDIA device and torch {machine.torch} ({machine.build}) cannot use it: "
    fix = "install a torch that is built for its driver: `nvidia-smi` tells the newest CUDA that the driver takes"
    yield found("CF018", message + machine.gpu_error, "measured", fix=fix)


def fast_paths(examined: Examined) -> Iterator[Finding]:
    observed = examined.observed
    if observed is None:
        return
    if observed.error is not None:
        yield _raised(observed.error, observed.culprit, observed.device)
    slow: Level = "warning" if observed.device != "cpu" else "note"
    for path in observed.paths:
        if path.state == "used":
            continue
        instead = ", ".join(path.substitutes) or OWN_CODE
        if examined.state(path.package) == "works":
            yield _not_used(path, instead, observed.device, slow)
        elif examined.state(path.package) == "absent":
            message = f"{path.package} is not installed (slow): layers of this target run {instead}: same outputs"
            fix = BY_NAME[path.package].command if path.package in BY_NAME else f"pip install {path.package}"
            fix += " (needs a GPU)" if observed.device == "cpu" else ""
            yield found(MISSING_KERNELS.get(path.package, "CF002"), message, "measured", fix=fix, level=slow)


def masks(examined: Examined) -> Iterator[Finding]:
    """A float mask is what published code passes: one that hides nothing under the default stops a run."""
    attention = examined.attention
    if attention is None:
        return
    for trial in attention.trials:
        if trial.state == "wrong":
            yield _wrong_mask(trial, attention.default)
        elif trial.name == attention.default and trial.form == "float" and trial.state in ("refused", "not installed"):
            message = f"{trial.name}, which this target gets if nobody asks, is {trial.state}: {trial.text}"
            fix = "load the target with attn_implementation='sdpa'" if trial.name != "sdpa" else "use eager attention"
            yield found("CF017", message, "measured", fix=fix, level="error")


def memory(examined: Examined) -> Iterator[Finding]:
    plan, machine = examined.plan, examined.machine
    if plan is None or machine is None:
        return
    details = {"bytes": plan.total, "rooms": {room.where: room.short for room in plan.rooms}}
    if plan.fits is None:
        fix = f"use a larger device or several, quantise, or shorten the context (--context, now {plan.context})"
        room = max(entry.free for entry in plan.rooms) if plan.rooms else 0
        everything = int(sum(device.free or 0 for device in machine.devices) * (1 - RESERVE))
        message = plan.verdict
        if everything + (machine.disk_free or 0) > plan.total and machine.disk_free:
            message += (
                f"; a dispatch would have to keep {gigabytes(plan.total - min(everything, room))} on disk "
                f"({gigabytes(machine.disk_free)} free at {machine.disk}), which is slower by orders of magnitude"
            )
        yield found("CF610", message, "read", fix=fix, level="error", details=details)
    elif machine.accelerated and plan.accelerated is None:
        message = f"the plan fits in the memory of this machine and on none of its accelerators: {plan.verdict}"
        fix = "load with device_map='auto' (accelerate), which keeps a part in memory and is slower"
        yield found("CF610", message, "read", fix=fix, level="warning", details=details)


def what_died(examined: Examined) -> Iterator[Finding]:
    yield from examined.died
    if examined.no_worker is not None:
        broken = [package.name for package in examined.packages if package.state != "works" and package.name in _NEEDED]
        named = f" ({', '.join(broken)})" if broken else ""
        message = f"torch and transformers cannot be imported{named}: {examined.no_worker}"
        fix = "mend the packages named here, or pip install --upgrade torch transformers"
        yield found("CF014", message, "measured", fix=fix)


_NEEDED = ("torch", "transformers", "accelerate", "safetensors", "tokenizers", "huggingface-hub")
_CHECKS: tuple[Callable[[Examined], Iterator[Finding]], ...] = (
    what_died,
    broken_packages,
    missing_packages,
    unusable_gpu,
    fast_paths,
    masks,
    memory,
)


def _raised(error: str, culprit: str | None, device: str) -> Finding:
    if culprit is None:
        return found("CF013", f"a forward of the tiny model raised: {error}", "measured")
    message = f"{culprit} is called by this target's layers and raises on {device}: {error}"
    fix = f"pip uninstall {culprit} (the layers then run on torch), or use the device and version that it is made for"
    return found("CF016", message, "measured", fix=fix, details={"package": culprit})


def _not_used(path: FastPath, instead: str, device: str, level: Level) -> Finding:
    where = f"on {device}" + (", where it is not usable" if device == "cpu" else "")
    verb = "is used in part only" if path.state == "partly" else "is not called"
    message = f"{path.package} works and {verb} {where}: layers of this target run {instead}"
    fix = (
        "nothing to do on a CPU"
        if device == "cpu"
        else f"install the version that this transformers takes: {_up(path)}"
    )
    return found("CF015", message, "measured", fix=fix, level=level, details={"package": path.package})


def _up(path: FastPath) -> str:
    spec = BY_NAME.get(path.package)
    return (spec.command if spec else f"pip install {path.package}").replace("install", "install --upgrade", 1)


def _wrong_mask(trial: Trial, default: str) -> Finding:
    level: Level = "note"
    if trial.form == "float":
        level = "error" if trial.name == default else "warning"
    message = f"{trial.name} accepts a {trial.form} tree mask and is wrong: {trial.text}"
    fix = "pass additive masks in the model's dtype; the runtime does: compatfix patch"
    if trial.form == "float":
        fix = "verify trees under another implementation: attn_implementation='sdpa'"
    details = {"implementation": trial.name, "form": trial.form, "difference": trial.difference}
    return found("CF017", message, "measured", fix=fix, level=level, details=details)


def _quantised(examined: Examined) -> str | None:
    return examined.target.quantised if examined.target is not None else None
