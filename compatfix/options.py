"""Options that commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

FORMATS = click.Choice(["text", "json", "md"])
CODE_LIST_HELP = "Codes or names, separated by commas."
Command = TypeVar("Command", bound=Callable[..., Any])
# Below it the rounding of logits moves chances.
LOWEST_TEMPERATURE = 0.01


def split_codes(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Turns `CF201,absolute-crop` into codes of rules; a prefix such as CF2 means its whole family."""
    if not value:
        return ()
    from compatfix.codes import lookup
    from compatfix.rewrites import all_rules

    known = [rule.code for rule in all_rules()]
    codes: list[str] = []
    for word in filter(None, (part.strip() for part in value.split(","))):
        entry = lookup(word)
        wanted = entry.code if entry else word.upper()
        found = [code for code in known if code == wanted or (entry is None and code.startswith(wanted))]
        if not found or not wanted.startswith("CF"):
            raise click.BadParameter(f"no rule {word!r}; `compatfix rules` lists them")
        codes.extend(found)
    return tuple(codes)


def split_budgets(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        budgets = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 32,64") from None
    if not budgets or min(budgets) < 1:
        raise click.BadParameter("a tree budget is at least 1")
    return budgets


def split_sizes(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...]:
    try:
        sizes = tuple(float(part) for part in value.split(",")) if value else ()
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of sizes in GB such as 48,48") from None
    if any(not 0 < size < float("inf") for size in sizes):
        raise click.BadParameter("a device has more than 0 GB")
    return sizes


def split_scopes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    from compatfix.model import SCOPES

    scopes = tuple(part.strip() for part in value.split(","))
    for scope in scopes:
        if scope not in SCOPES:
            raise click.BadParameter(f"{scope!r} is not a scope; scopes are {', '.join(SCOPES)}")
    return scopes


def finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter("a limit is a number above 0")
    return value


def warm_enough(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not LOWEST_TEMPERATURE <= value < float("inf"):
        raise click.BadParameter(
            f"a temperature to sample at is at least {LOWEST_TEMPERATURE}; greedy text is judged anyway"
        )
    return value


def probability(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 < value <= 1:
        raise click.BadParameter("top-p is above 0 and at most 1")
    return value


def several(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """One decorator of many; the help lists them in this order."""

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def readable_choice(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """--entry, --argument and --result are read before anything is started."""
    from compatfix.errors import UsageError
    from compatfix.validate.roles import parse_choices

    given: dict[str, Any] = {"entries": (), "arguments": (), "results": (), str(param.name): value}
    try:
        parse_choices(given["entries"], given["arguments"], given["results"])
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    return value


verbose_option = click.option("-v", "--verbose", is_flag=True, help="Everything that was found, and tracebacks.")
format_option = click.option("--format", "form", type=FORMATS, default="text", show_default=True)
github_format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "md", "github"]),
    default="text",
    show_default=True,
    help="github: annotations as workflow commands.",
)
fail_option = click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note"]),
    default="error",
    show_default=True,
    help="Findings of this level or graver fail the run.",
)
baseline_option = click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Findings that are known (from `compatfix report baseline`) do not count; scopes still do.",
)
draft_option = click.option("--draft", metavar="MODEL", help="Directory or hub id of the draft.")
python_option = click.option(
    "--python", metavar="EXE", help="Interpreter of the environment under test; needs torch and transformers."
)
time_option = click.option(
    "--time-limit", callback=finite, type=float, default=600, show_default=True, help="Seconds per worker step."
)
memory_option = click.option(
    "--memory-limit",
    callback=finite,
    type=float,
    metavar="GB",
    help="Memory a worker step may use; default: no limit.",
)
select_option = click.option("--select", callback=split_codes, help=f"Only these rules. {CODE_LIST_HELP}")
ignore_option = click.option("--ignore", callback=split_codes, help=f"Not these rules. {CODE_LIST_HELP}")
prompt_file_option = click.option(
    "--prompt-file", metavar="FILE", help="Prompts for real weights, one a line (text or JSON); - for standard input."
)
temperature_option = click.option(
    "--temperature", type=float, callback=warm_enough, metavar="T", help="Judge sampling at this temperature too."
)
top_p_option = click.option("--top-p", type=float, default=1.0, callback=probability, help="With --temperature.")
top_k_option = click.option("--top-k", type=click.IntRange(0), default=0, help="With --temperature; 0 for none.")
samples_option = click.option(
    "--samples", type=click.IntRange(1), default=96, show_default=True, help="Texts per mode, with --temperature."
)
repetitions_option = click.option(
    "--repetitions",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="With --on weights: how often each prompt is timed in every mode; 0 for no timing.",
)
sampling_options = several(temperature_option, top_p_option, top_k_option, samples_option)
entry_options = several(
    click.option(
        "--entry",
        "entries",
        multiple=True,
        callback=readable_choice,
        metavar="[KIND=]MODULE:FUNCTION",
        help="An entry point that is not found by its signature; KIND is chain, tree or loop. Repeatable.",
    ),
    click.option(
        "--argument",
        "arguments",
        multiple=True,
        callback=readable_choice,
        metavar="NAME=ROLE|JSON",
        help="What a parameter of an entry point means, or a value for it; MODULE:FUNCTION.NAME for one. Repeatable.",
    ),
    click.option(
        "--result",
        "results",
        multiple=True,
        callback=readable_choice,
        metavar="[MODULE:FUNCTION=]FIELD[:new]",
        help="Where an entry point's result holds the output ids; :new if they come without the prompt. Repeatable.",
    ),
)
# For a model that is not tiny: what the user's own run is started with.
placing_options = several(
    click.option(
        "--dtype",
        type=click.Choice(["bfloat16", "float16", "float32"]),
        help="With --on slice or weights; default: as the checkpoint is stored.",
    ),
    click.option(
        "--attn", metavar="NAME", help="With --on slice or weights: attention implementation (eager, sdpa, …)."
    ),
    click.option(
        "--device", metavar="NAME", help="With --on slice or weights: cuda, cuda:1, mps, cpu; default: the best."
    ),
    click.option(
        "--device-map",
        metavar="MAP",
        help="With --on weights: spread the target over devices; auto, balanced, or accelerate's map as JSON.",
    ),
    click.option(
        "--slice-values",
        "values",
        type=click.Choice(["random", "checkpoint"]),
        default="random",
        show_default=True,
        help="With --on slice: what fills its layers.",
    ),
)
long_run_option = click.option(
    "--long-run",
    type=click.IntRange(64),
    metavar="N",
    help="One text of N tokens per mode too (2048, say): does the state drift? On the tiny model.",
)
if_changed_option = click.option(
    "--if-changed", is_flag=True, help="Answer from the last green verdict if nothing has changed since; else run."
)
dirty_option = click.option("--allow-dirty", is_flag=True, help="Rewrite files with uncommitted changes too.")
