"""`compatfix diagnose`: why acceptance is low, by elimination on the user's own pair."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from compatfix.options import (
    entry_options,
    github_format_option,
    memory_option,
    prompt_file_option,
    python_option,
    split_budgets,
    time_option,
    verbose_option,
)
from compatfix.running import finish, shown_progress, worker_options


@click.command()
@click.argument("tree", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="MODEL", help="Directory or hub id of the target, with weights.")
@click.option("--draft", required=True, metavar="MODEL", help="Directory or hub id of the draft, with weights.")
@click.option("--patch", "patching", type=click.Choice(["copy"]), help="Diagnose a patched copy of TREE.")
@prompt_file_option
@click.option(
    "--chat",
    type=click.Choice(["raw", "template", "thinking", "no-thinking"]),
    default="raw",
    show_default=True,
    help="The form in which the prompts are given now; the others are tried.",
)
@click.option("--reference", metavar="DIR", help="The target's unrotated checkpoint, to measure a rotated basis with.")
@click.option(
    "--only",
    multiple=True,
    metavar="SUSPECT",
    help="Try this suspect (docs/diagnose.md names them); may be given several times.",
)
@click.option("--prompts", type=click.IntRange(6), default=12, show_default=True, help="Fewer tell less.")
@click.option("--max-new-tokens", "tokens", type=click.IntRange(4), default=32, show_default=True)
@click.option("--tree-budget", "budgets", default="8", show_default=True, callback=split_budgets)
@click.option("--seed", type=int, default=0, show_default=True)
@entry_options
@click.option("--report-dir", type=click.Path(path_type=Path), default=Path("reports"), show_default=True)
@github_format_option
@python_option
@time_option
@memory_option
@verbose_option
def diagnose(
    tree: Path,
    target: str,
    draft: str,
    patching: str | None,
    prompt_file: str | None,
    report_dir: Path,
    form: str,
    verbose: bool,
    **options: Any,
) -> None:
    """Says why few drafted tokens are accepted: toggles one suspect after another on your own target and draft.

    Exit 0: nothing that was measured raises acceptance. 1: a cause was found. 2: it cannot be run.
    """
    from compatfix import api
    from compatfix.diagnose.front import DiagnoseOptions, conclusion, exit_code
    from compatfix.report.files import check_writable
    from compatfix.validate.prompt_file import read_prompts

    check_writable(report_dir)
    texts = () if prompt_file is None else read_prompts(prompt_file)
    with shown_progress() as on_step:
        report = api.diagnose(
            tree,
            target,
            draft,
            options=DiagnoseOptions(**worker_options(options), texts=texts),
            patched=patching == "copy",
            on_step=on_step,
        )
    finish(report, report_dir, form, verbose)
    click.echo(conclusion(report), err=form != "text")
    sys.exit(exit_code(report))
