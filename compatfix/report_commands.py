"""`compatfix report`: what is done with reports that a run wrote."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group()
def report() -> None:
    """Works on reports that validate and gate wrote: RUN is a run's directory, its report.json, or a report directory,
    whose newest run it then means."""


@report.command()
@click.argument("before", type=click.Path(path_type=Path), metavar="A")
@click.argument("after", type=click.Path(path_type=Path), metavar="B")
@click.option("--format", "form", type=click.Choice(["text", "json", "md"]), default="text", show_default=True)
def compare(before: Path, after: Path, form: str) -> None:
    """Says what changed from run A to run B; exits 1 if B is worse: a scope no longer passes, or an error is new."""
    from compatfix.report.compare import compare as compared
    from compatfix.report.comparison import comparison_text, conclusion_of
    from compatfix.report.reading import load_report, sections_of

    reports = load_report(before), load_report(after)
    with sections_of(before, after):
        found = compared(*reports)
        text = comparison_text(found, form)
    click.echo(text)
    click.echo(conclusion_of(found), err=form != "text")
    sys.exit(1 if found.worse else 0)


@report.command()
@click.argument("runs", type=click.Path(path_type=Path), metavar="RUN...", nargs=-1, required=True)
def summary(runs: tuple[Path, ...]) -> None:
    """Says in a few sentences what each RUN came to; the exit code is 0 whatever that is."""
    from compatfix.report.console import show_short
    from compatfix.report.reading import load_report, sections_of

    for run, read in [(run, load_report(run)) for run in runs]:
        with sections_of(run):
            show_short(read)


@report.command()
@click.argument("run", type=click.Path(path_type=Path))
def baseline(run: Path) -> None:
    """Prints a baseline that makes every finding of RUN known; give it to gate or validate with --baseline FILE."""
    from compatfix.report.baseline import baseline_text
    from compatfix.report.reading import load_report

    click.echo(baseline_text(load_report(run)))


@report.command()
@click.argument("run", type=click.Path(path_type=Path))
def render(run: Path) -> None:
    """Writes the pages of RUN again from its report.json, which stays as it is."""
    from compatfix.report.files import write_again
    from compatfix.report.reading import sections_of

    with sections_of(run):
        written = write_again(run)
    for path in written:
        click.echo(f"wrote {path}")


@report.command()
def schema() -> None:
    """Prints the JSON Schema of report.json."""
    import json

    from compatfix.report.schema import report_schema

    click.echo(json.dumps(report_schema(), indent=1))
