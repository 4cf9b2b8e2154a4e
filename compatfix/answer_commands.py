"""`compatfix explain` and `compatfix repro`: answers about one code, or about a log that somebody pastes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatfix.errors import UsageError
from compatfix.options import verbose_option

if TYPE_CHECKING:
    from compatfix.codes import Code


@click.command()
@click.argument("subject", metavar="CODE|FILE|-")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@verbose_option
def explain(subject: str, form: str, verbose: bool) -> None:
    """Prints the page of CODE (CF203, or absolute-crop), or says what the traceback in FILE is and what fixes it.

    - reads standard input; any log will do. Exit 1: nothing in it was recognised.
    """
    from compatfix.codes import lookup

    entry = lookup(subject)
    if entry is not None:
        from compatfix.rewrites import page

        text = page(entry.code)
        click.echo(_page_json(entry, text) if form == "json" else text, nl=form == "json")
        return
    from compatfix.tracebacks import answer, decoded, json_of, text_of

    answered = answer(decoded(_pasted(subject)))
    click.echo(json_of(answered) if form == "json" else text_of(answered, verbose=verbose), nl=form == "json")
    sys.exit(0 if answered.recognised else 1)


def _page_json(entry: Code, text: str) -> str:
    fields = {"code": entry.code, "name": entry.name, "level": entry.level, "title": entry.title, "page": text}
    return json.dumps(fields, indent=2, ensure_ascii=False)


def _pasted(subject: str) -> bytes:
    """What a user gave to be explained: the bytes of a file or of standard input."""
    if subject == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(subject).read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"no code, name or file {subject}: give a code (compatfix rules lists them), a file with a traceback, or "
            "- for standard input"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {subject}: {getattr(error, 'strerror', None) or error}") from error


@click.command()
@click.argument("code")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the script there.")
def repro(code: str, output: Path | None) -> None:
    """Prints a short script that shows the fault of CODE with torch and transformers alone, fit for an upstream report.

    The script exits 1 where the fault shows, 0 where this transformers does not have it, 2 where it cannot tell.
    """
    from compatfix.repros import script

    text = script(code)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    click.echo(f"wrote {output}")
