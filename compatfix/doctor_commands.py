"""`compatfix doctor`: is this environment fit, for a target or in general?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatfix.options import (
    draft_option,
    fail_option,
    finite,
    github_format_option,
    memory_option,
    python_option,
    verbose_option,
)
from compatfix.running import show, shown_progress, worker_options

if TYPE_CHECKING:
    from compatfix.model import Level


@click.command()
@click.option("--target", metavar="MODEL", help="Directory or hub id of the target.")
@draft_option
@click.option("--context", type=click.IntRange(1), default=4096, show_default=True, help="Tokens, for memory.")
@click.option("--tree-budget", type=click.IntRange(0), default=64, show_default=True, help="Nodes, for memory.")
@click.option(
    "--attention", multiple=True, metavar="NAME", help="Try this implementation too (a kernel of the hub, say)."
)
@click.option(
    "--offload-folder",
    "offload",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where a dispatch would offload weights to; default: the current directory.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the tiny model.")
@github_format_option
@fail_option
@python_option
@click.option(
    "--import-limit", callback=finite, type=float, default=20, show_default=True, help="Seconds for each import."
)
@click.option(
    "--time-limit", callback=finite, type=float, default=120, show_default=True, help="Seconds for each other step."
)
@memory_option
@verbose_option
def doctor(
    target: str | None,
    draft: str | None,
    offload: Path,
    form: str,
    fail_on: Level,
    verbose: bool,
    **options: Any,
) -> None:
    """Says whether this environment is fit: what imports, which fast paths run, which attention honours a tree mask,
    and whether the target fits in memory. No weights are loaded.

    Exit 0: nothing stops a run. 1: something does. 2: bad use.
    """
    from compatfix import api
    from compatfix.doctor.front import DoctorOptions, conclusion

    chosen = DoctorOptions(**worker_options(options), offload=str(offload.absolute()))
    with shown_progress() as on_step:
        report = api.doctor(target, draft=draft, options=chosen, on_step=on_step)
    report = api.settle(report, (), fail_on)
    show(report, form, verbose)
    click.echo(conclusion(report), err=form != "text")
    sys.exit(1 if api.worst_at_least(report, report.fail_on) else 0)
