"""One renderer per format. All of them read the same `Report`; none of them adds to what it says."""

from __future__ import annotations

from compatfix.model import Report


def render(report: Report, form: str, *, verbose: bool = False) -> None:
    """Prints `report` on standard output as "text", "json", "md" or "github"."""
    if form == "json":
        from compatfix.serial import to_json

        print(to_json(report, indent=2))
    elif form == "github":
        from compatfix.report.github import commands

        print(*commands(report), sep="\n")
    elif form == "md":
        from compatfix.report.markdown import to_markdown

        print(to_markdown(report), end="")
    else:
        from compatfix.report.console import show

        show(report, verbose=verbose)
