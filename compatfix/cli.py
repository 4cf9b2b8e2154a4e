"""The commands; nothing else. Each parses its options, calls one function of `compatfix.api`, and renders the result.

Exit codes: 0 done, nothing stands in the way · 1 findings · 2 bad use, bad input or an internal error.
"""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from compatfix import __version__, answer_commands, diagnose_commands, doctor_commands, report_commands
from compatfix.errors import UsageError
from compatfix.options import (
    baseline_option,
    dirty_option,
    draft_option,
    entry_options,
    fail_option,
    format_option,
    github_format_option,
    if_changed_option,
    ignore_option,
    long_run_option,
    memory_option,
    placing_options,
    prompt_file_option,
    python_option,
    repetitions_option,
    sampling_options,
    select_option,
    several,
    split_budgets,
    split_scopes,
    split_sizes,
    time_option,
    verbose_option,
)
from compatfix.running import finish, located_pair, show, shown_progress, validation_settings, worker_options

if TYPE_CHECKING:
    from compatfix.model import Level


class Group(click.Group):
    """Turns the tool's own errors into one line and exit code 2, with a traceback only under -v."""

    def invoke(self, ctx: click.Context) -> Any:
        # A terminal that lacks a character must not cost a verdict; a termination must not leave things behind.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except UsageError as error:
            from compatfix.report.plaintext import one_line

            # A path may hold anything, a line break before a workflow command among it.
            click.echo(f"error: {one_line(error)}", err=True)
            _traceback_if_verbose()
            ctx.exit(2)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(2)
        except Exception as error:
            click.echo(
                f"error: internal error: {type(error).__name__}: {error} (run with -v for the traceback)", err=True
            )
            _traceback_if_verbose()
            ctx.exit(2)


def _traceback_if_verbose() -> None:
    if {"-v", "--verbose"} & set(sys.argv):
        import traceback

        traceback.print_exc()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Will this speculative-decoding code run on that target, and will its text be right?

    \b
    compatfix doctor --target MODEL    whether this environment is fit for the target
    compatfix inspect MODEL            what the target is and what stands in the way
    compatfix patch TREE               rewrite the code, reviewable and undoable
    compatfix gate TREE --target MODEL prove it by scope before GPU-hours are spent
    """


@main.command()
@click.argument("model")
@draft_option
@click.option("--context", type=click.IntRange(1), default=32768, show_default=True, help="Tokens, for memory.")
@click.option("--tree-budget", type=click.IntRange(0), default=64, show_default=True, help="Nodes, for memory.")
@click.option("--devices", callback=split_sizes, metavar="GB,…", help="Devices to hold the memory plan against.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the tiny model.")
@github_format_option
@click.option("--fail-on", type=click.Choice(["error", "warning", "note"]), help="Exit 1 on findings of this level.")
@python_option
@time_option
@memory_option
@verbose_option
def inspect(model: str, draft: str | None, form: str, fail_on: str | None, verbose: bool, **options: Any) -> None:
    """Says what MODEL is, how it behaves, and what stands in the way; weights are never loaded."""
    from compatfix import api

    with shown_progress() as on_step:
        report = api.inspect(model, draft=draft, on_step=on_step, **worker_options(options))
    show(report, form, verbose)
    if not report.statements:
        sys.exit(2)  # nothing could be answered
    sys.exit(1 if fail_on and api.worst_at_least(report, cast("Level", fail_on)) else 0)


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--diff", "show_diff", is_flag=True, help="Print the diff and write nothing.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file would change, or more than notes is left.")
@select_option
@ignore_option
@dirty_option
@click.option("--force-runtime", is_flag=True, help="Replace a runtime copy that was edited by hand.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--target", metavar="MODEL", help="Go on to validate against this target.")
@draft_option
@click.option("--report-dir", type=click.Path(path_type=Path), default=Path("reports"), show_default=True)
@verbose_option
def patch(
    path: Path,
    show_diff: bool,
    check: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    allow_dirty: bool,
    force_runtime: bool,
    form: str,
    target: str | None,
    draft: str | None,
    report_dir: Path,
    verbose: bool,
) -> None:
    """Rewrites the code in PATH so that it is exact on any target; `compatfix undo PATH` takes it back."""
    from compatfix import api
    from compatfix.report.patching import plan_json, plan_lines

    plan = api.plan_patch(path, select=select, ignore=ignore, force_runtime=force_runtime)
    if show_diff:
        from compatfix.rewrites import diff

        sys.stdout.buffer.write(diff(plan).encode("utf-8", "surrogateescape"))
        return
    if not check:
        api.apply_patch(plan, allow_dirty=allow_dirty)
    if form == "json":
        click.echo(plan_json(plan))
    else:
        for line in plan_lines(plan, written=not check, target=target, draft=draft):
            click.echo(line)
    left = bool(api.blocking(plan))
    if check or target is None:
        sys.exit(1 if left or (check and not plan.empty) else 0)
    with shown_progress() as on_step:
        report = api.validate(path, target, draft=draft, on_step=on_step)
    finish(report, report_dir, "text", verbose)
    sys.exit(1 if left or not api.green(report, ("code",)) else 0)


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Restore even files that changed since they were patched.")
def undo(path: Path, force: bool) -> None:
    """Takes the last patch of PATH back, byte for byte."""
    from compatfix import api

    restored, removed = api.undo(path, force=force)
    for name in restored:
        click.echo(f"restored {name}")
    if removed:
        click.echo(f"removed {len(removed)} files that the patch had added")


@main.command()
@format_option
def rules(form: str) -> None:
    """Lists every code: its level, whether `patch` fixes it, and what it finds."""
    from compatfix.report.patching import rules_text

    click.echo(rules_text(form))


# What validate and gate share.
validation_options = several(
    click.argument("tree", type=click.Path(path_type=Path)),
    click.option("--target", required=True, metavar="MODEL", help="Directory or hub id of the target."),
    draft_option,
    click.option("--on", type=click.Choice(["tiny", "slice", "weights"]), default="tiny", show_default=True),
    click.option("--tree-budget", "budgets", default="32,64", show_default=True, callback=split_budgets),
    click.option("--prompts", type=click.IntRange(1), default=24, show_default=True),
    click.option("--max-new-tokens", "tokens", type=click.IntRange(2), default=64, show_default=True),
    click.option("--seed", type=int, default=0, show_default=True),
    prompt_file_option,
    sampling_options,
    entry_options,
    placing_options,
    repetitions_option,
    long_run_option,
    click.option("--require", default="code", show_default=True, callback=split_scopes, help="Scopes that must pass."),
    fail_option,
    baseline_option,
    if_changed_option,
    click.option("--report-dir", type=click.Path(path_type=Path), default=Path("reports"), show_default=True),
    github_format_option,
    python_option,
    time_option,
    memory_option,
    verbose_option,
)


@main.command()
@validation_options
def validate(
    tree: Path,
    target: str,
    draft: str | None,
    report_dir: Path,
    form: str,
    verbose: bool,
    if_changed: bool,
    **options: Any,
) -> None:
    """Runs TREE as it is on disk against a target and judges it by scope."""
    from compatfix import api
    from compatfix.held_to import counted_findings, required_scopes
    from compatfix.report.files import check_writable
    from compatfix.unchanged import answered, open_ledger

    required, counting = required_scopes(options), counted_findings(options)
    check_writable(report_dir)
    settings = validation_settings(options)
    held_to = {"require": required, "fail-on": counting[0], "baseline": counting[1]}
    at = located_pair(target, draft, settings)
    ledger = open_ledger("validate", tree, at, report_dir, settings, held_to)
    if answered(ledger, if_changed, form != "text"):
        sys.exit(0)
    with shown_progress() as on_step:
        report = api.validate(tree, at.target, draft=at.draft, options=settings, on_step=on_step, used=ledger.used)
    report = api.settle(report, required, *counting)
    finish(report, report_dir, form, verbose, ledger)
    click.echo(api.conclusion(report, required), err=form != "text")
    sys.exit(0 if api.green(report, required) else 1)


@main.command()
@validation_options
@click.option(
    "--patch",
    "patching",
    type=click.Choice(["copy", "in-place"]),
    help="Judge a patched copy, or patch TREE first. Without it TREE is judged as it is.",
)
@select_option
@ignore_option
@dirty_option
@click.option("--ladder/--no-ladder", default=True, show_default=True, help="Tell the story of the unpatched code too.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED)
def gate(
    tree: Path,
    target: str,
    draft: str | None,
    report_dir: Path,
    form: str,
    verbose: bool,
    if_changed: bool,
    patching: Literal["copy", "in-place"] | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    allow_dirty: bool,
    ladder: bool,
    cmd: tuple[str, ...],
    **options: Any,
) -> None:
    """Exits 0 only when TREE, as it will run, passed every required scope; then starts the CMD given after --."""
    from compatfix import api
    from compatfix.held_to import counted_findings, required_scopes
    from compatfix.report.files import check_writable
    from compatfix.unchanged import answered, open_ledger

    required, counting = required_scopes(options), counted_findings(options)
    check_writable(report_dir)
    if cmd and patching == "copy":
        raise UsageError("a command would run TREE and not the patched copy that was judged; use --patch in-place")
    settings = validation_settings(options)
    rules = {"patch": patching, "select": select, "ignore": ignore, "ladder": ladder}
    held_to = {"require": required, "fail-on": counting[0], "baseline": counting[1]}
    at = located_pair(target, draft, settings)
    ledger = open_ledger("gate", tree, at, report_dir, settings, {**rules, **held_to})
    if not answered(ledger, if_changed, form != "text"):
        with shown_progress() as on_step:
            report = api.gate(
                tree,
                at.target,
                draft=at.draft,
                options=settings,
                patching=patching,
                select=select,
                ignore=ignore,
                allow_dirty=allow_dirty,
                ladder=ladder,
                on_step=on_step,
                used=ledger.used,
            )
        report = api.settle(report, required, *counting)
        finish(report, report_dir, form, verbose, ledger)
        click.echo(api.conclusion(report, required), err=form != "text")
        if not api.green(report, required):
            sys.exit(1)
    if cmd:
        click.echo(f"starting {shlex.join(cmd)}", err=form != "text")
        _start(cmd)


def _start(cmd: tuple[str, ...]) -> None:
    """Hands the process over to `cmd`, so that its exit code and signals are its own."""
    sys.stdout.flush()
    try:
        os.execvp(cmd[0], cmd)
    except OSError as error:
        raise UsageError(f"cannot start {cmd[0]}: {error.strerror or error}") from error


main.add_command(answer_commands.explain)
main.add_command(answer_commands.repro)
main.add_command(diagnose_commands.diagnose)
main.add_command(doctor_commands.doctor)
main.add_command(report_commands.report)

if __name__ == "__main__":
    main()
