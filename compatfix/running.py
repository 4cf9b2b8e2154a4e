"""What the commands that run something share: settings from options, progress, and the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatfix.errors import UsageError
from compatfix.validate.device_map import check_device, read_device_map

if TYPE_CHECKING:
    from compatfix.attest.ledger import Ledger
    from compatfix.hub.place import Places
    from compatfix.model import Report
    from compatfix.validate.options import ValidationOptions


def validation_settings(options: dict[str, Any]) -> ValidationOptions:
    from compatfix.validate.judge import AT_LEAST, SMALLEST_RUN
    from compatfix.validate.options import ValidationOptions
    from compatfix.validate.prompt_file import read_prompts

    if options["temperature"] is None and (options["top_p"] < 1 or options["top_k"]):
        raise UsageError("--top-p and --top-k say how to sample: give --temperature too")
    prompt_file = options.pop("prompt_file")
    if prompt_file is not None and options["on"] != "weights":
        raise UsageError("--prompt-file needs --on weights: a tiny random model has no language to be prompted in")
    if options["prompts"] < SMALLEST_RUN[0] or options["tokens"] < SMALLEST_RUN[1]:
        click.echo(f"this run cannot pass scope code: {AT_LEAST}", err=True)
    _check_placing(options)
    texts = () if prompt_file is None else read_prompts(prompt_file)
    options["long_run"] = options["long_run"] or 0
    return ValidationOptions(**worker_options(options), texts=texts)


def _check_placing(options: dict[str, Any]) -> None:
    """Options that the kind of model in hand would not heed are refused."""
    on = options["on"]
    for name in ("dtype", "attn", "device"):
        if options[name] is not None and on == "tiny":
            raise UsageError(f"--{name} needs --on slice or --on weights: the tiny model is judged in float32 and bf16")
    if options["device_map"] is not None and (on != "weights" or options["device"] is not None):
        raise UsageError("--device-map needs --on weights, and no --device")
    if options["device"] is not None:
        check_device(options["device"])
    if options["attn"] is not None and "|" in options["attn"]:
        raise UsageError(f"--attn {options['attn']}: implementations for continuous batching do not run like this")
    if options["device_map"] is not None:
        read_device_map(options["device_map"])
    if options["values"] != "random" and on != "slice":
        raise UsageError("--slice-values needs --on slice")


def worker_options(options: dict[str, Any]) -> dict[str, Any]:
    """`--memory-limit` is in GB for people and in bytes for the worker."""
    limit = options.pop("memory_limit", None)
    return {**options, "memory_limit": None if limit is None else int(limit * 1e9)}


def located_pair(target: str, draft: str | None, settings: ValidationOptions) -> Places:
    """Where the models lie. Hub ids are asked for here and once, so that what is compared is what is judged."""
    from compatfix.hub.resolve import places

    with shown_progress() as on_step:
        return places(target, draft, weights=settings.on == "weights", on_step=on_step)


def shown_progress() -> Any:
    from compatfix.report.progress import progress

    return progress()


def finish(report: Report, directory: Path, form: str, verbose: bool, ledger: Ledger | None = None) -> None:
    """Writes the report, shows it, says where it is, and tells GitHub where that is the host."""
    from compatfix.report.files import write_report
    from compatfix.report.github import append_summary, commands, runs_there

    run = write_report(report, directory)
    unkept = [] if ledger is None else [ledger.keep(report, run), ledger.leave(report, run)]
    show(report, form, verbose)
    click.echo(f"report: {run}", err=form != "text")
    for line in filter(None, unkept):
        click.echo(line, err=True)
    if runs_there():
        append_summary(report)
        if form != "github":
            for line in commands(report):
                click.echo(line, err=form != "text")


def show(report: Report, form: str, verbose: bool) -> None:
    from compatfix.report import render

    render(report, form, verbose=verbose)
