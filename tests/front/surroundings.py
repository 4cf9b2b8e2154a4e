"""What people paste around an error: one function for each layout, written by hand from what the tools print.

Each takes an `Accident` and gives the text of a log. A library frame is optional: some errors are raised in user code.
"""

import json
import textwrap
from dataclasses import dataclass

HEADER = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Accident:
    """An error as it happened: `code` stands at line 102 of ddtree/dflash.py, in dflash_generate."""

    exception: str
    message: str
    code: str = "output = run(target, block_ids)"
    library: tuple[str, int, str, str] | None = None  # file below site-packages, line, function, code

    @property
    def last(self):
        return f"{self.exception}: {self.message}"


def plain(accident):
    return "\n".join(["loading weights", *_traceback(accident), "bye"])


def ranked(accident):
    """Two ranks of torchrun, line by line in turn; rank 1 has a trouble of its own that nobody knows."""
    mine = [f"[rank0]: {line}" for line in _traceback(accident)]
    other = [
        f"[rank1]: {line}" for line in [HEADER, '  File "/home/u/ddtree/other.py", line 7, in spare', "    spare()"]
    ]
    turns = [line for pair in zip(mine, other, strict=False) for line in pair]
    return "\n".join(turns + mine[len(other) :] + other[len(mine) :])


def container(accident):
    """docker compose logs with times, on Windows."""
    return "\r\n".join(f"trainer-1  | 2026-11-30T21:40:22.123456Z {line}" for line in _traceback(accident)) + "\r\n"


def syslog(accident):
    return "\n".join(f"Nov 30 21:40:22 gpu-07 python[4242]: {line}" for line in _traceback(accident))


def server(accident):
    """A prefix that no rule knows, on every line."""
    return "\n".join(f"(Engine_0 pid=77) ERROR 11-30 21:40:22 [core.py:700] {line}" for line in _traceback(accident))


def coloured(accident):
    lines = [f"\x1b[31m{line}\x1b[0m" for line in _traceback(accident)[:-1]]
    return "\n".join([*lines, f"\x1b[1;31m{accident.exception}\x1b[0m: \x1b[35m{accident.message}\x1b[0m"])


def narrow(accident):
    """A terminal of 60 columns that cuts lines anywhere."""
    return "\n".join(line[at : at + 60] for line in _traceback(accident) for at in range(0, len(line), 60))


def chained(accident):
    """The error is the cause of another one."""
    wrapper = [
        HEADER,
        '  File "/home/u/ddtree/benchmark.py", line 9, in main',
        "    raise RuntimeError('generation failed') from e",
    ]
    between = "The above exception was the direct cause of the following exception:"
    return "\n".join([*_traceback(accident), "", between, "", *wrapper, "RuntimeError: generation failed"])


def grouped(accident):
    """One of an exception group, as Python 3.11 prints it."""
    inner = [f"    | {line}" for line in _traceback(accident)]
    head = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/home/u/ddtree/benchmark.py", line 40, in <module>',
        "  |     asyncio.run(main())",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
    ]
    return "\n".join([*head, *inner, "    +------------------------------------"])


def pytest_long(accident):
    parts = [
        "=================================== FAILURES ===================================",
        "_______________________________ test_generation ________________________________",
        "",
        "    def dflash_generate(target, block_ids):",
        ">       " + accident.code,
        "",
    ]
    if accident.library:
        file, line, function, code = accident.library
        parts += [
            "/home/u/ddtree/dflash.py:102: ",
            "_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _",
            "",
            f"    def {function}(self, *args):",
            f">       {code}",
            f"E       {accident.last}",
            "",
            f"/venv/lib/python3.11/site-packages/{file}:{line}: {accident.exception}",
        ]
    else:
        parts += [f"E       {accident.last}", "", f"/home/u/ddtree/dflash.py:102: {accident.exception}"]
    return "\n".join([*parts, "=========================== short test summary info ============================"])


def notebook(accident):
    """IPython 8."""
    parts = [
        "-" * 75,
        accident.exception.ljust(42) + "Traceback (most recent call last)",
        "Cell In[7], line 3",
        "      1 ids = tokenizer(prompt, return_tensors='pt').input_ids",
        "      2 ",
        "----> 3 dflash_generate(target, ids)",
        "",
        "File ~/ddtree/dflash.py:102, in dflash_generate(target, block_ids)",
        "    100 start = 0",
        "    101 while start < end:",
        f"--> 102     {accident.code}",
        "    103     start += 1",
        "",
    ]
    if accident.library:
        file, line, function, code = accident.library
        parts += [
            f"File /venv/lib/python3.11/site-packages/{file}:{line}, in {function}(self, *args)",
            f"   {line - 1} # as it was",
            f"-> {line} {code}",
            "",
        ]
    return "\n".join([*parts, accident.last])


def rich_box(accident):
    """rich.traceback at 80 columns."""
    parts = ["╭───────────────────── Traceback (most recent call last) ─────────────────────╮"]
    parts += _boxed("/home/u/ddtree/dflash.py:102 in dflash_generate", "", "  101 │   while True:")
    parts += _boxed(f"❱ 102 │   │   {accident.code}", "  103 │   │   start += 1")
    if accident.library:
        file, line, function, code = accident.library
        parts += _boxed("", f"/venv/lib/python3.11/site-packages/{file}:{line} in {function}", "")
        parts += _boxed(f"  {line - 1} │   │   # as it was", f"❱ {line} │   │   {code}")
    parts += ["╰" + "─" * 78 + "╯"]
    return "\n".join(parts + textwrap.wrap(accident.last, 80))


def loguru(accident):
    """loguru with values, its default."""
    parts = [
        f"2026-11-30 21:40:22.123 | ERROR    | __main__:main:40 - generation failed: {accident.message}",
        HEADER,
        "",
    ]
    parts += ['> File "/home/u/ddtree/dflash.py", line 102, in dflash_generate', f"    {accident.code}"]
    parts += ["    │      └ <object at 0x7f0a12>"]
    if accident.library:
        file, line, function, code = accident.library
        parts += [f'  File "/venv/lib/python3.11/site-packages/{file}", line {line}, in {function}', f"    {code}"]
    return "\n".join([*parts, "", accident.last])


def json_line(accident):
    record = {"time": "2026-11-30T21:40:22Z", "level": "error", "exc": "\n".join(_traceback(accident))}
    return '{"time": "2026-11-30T21:40:21Z", "level": "info", "message": "started"}\n' + json.dumps(record)


def quoted(accident):
    """An answer to a mail, with a phone's quotation marks."""
    text = "\n".join(f"> {line}" for line in _traceback(accident))
    return "I get this:\n" + text.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}")


def last_line(accident):
    return accident.last


def message_alone(accident):
    return f"2026-11-30 21:40:22,123 - bench - WARNING - generation failed: {accident.message}"


def rich_log(accident):
    """rich.logging at 80 columns: wrapped, with the place in a column of its own."""
    lines = textwrap.wrap(accident.last, 46)
    parts = ["[11/30/26 21:40:22] ERROR    " + lines[0].ljust(48) + "bench.py:12"]
    return "\n".join(parts + [" " * 29 + line for line in lines[1:]])


WITH_FRAMES = (
    plain,
    ranked,
    container,
    syslog,
    server,
    coloured,
    narrow,
    chained,
    grouped,
    pytest_long,
    notebook,
    rich_box,
    loguru,
    json_line,
    quoted,
)
WITHOUT_FRAMES = (last_line, message_alone, rich_log)


def _traceback(accident):
    lines = [HEADER, '  File "/home/u/ddtree/dflash.py", line 102, in dflash_generate', f"    {accident.code}"]
    if accident.library:
        file, line, function, code = accident.library
        lines += [f'  File "/venv/lib/python3.11/site-packages/{file}", line {line}, in {function}', f"    {code}"]
    return [*lines, accident.last]


def _boxed(*lines):
    """Rich wraps what is too wide for the box."""
    wrapped = [part for line in lines for part in textwrap.wrap(line, 76, drop_whitespace=False) or [""]]
    return ["│ " + line.ljust(76) + " │" for line in wrapped]
