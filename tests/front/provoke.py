"""Provokes real errors of the transformers at hand, on tiny models, and prints their tracebacks as JSON lines.

python provoke.py DIRECTORY     runs DIRECTORY/mistakes.py, which holds the mistakes, one function for each
"""

import importlib.util
import io
import json
import sys
import traceback
import warnings

# Drawing takes as long as all the rest; these have short stacks, deep ones, and two tracebacks in a chain.
DRAWN = ("crop_length", "crop_hybrid", "bare_cache", "wrapped_config", "chat_template", "layer_id", "own_bug")


def drawn(name, error):
    """The traceback as rich draws it, where rich is installed."""
    if name not in DRAWN:
        return None
    try:
        from rich.console import Console
        from rich.traceback import Traceback
    except ImportError:
        return None
    console = Console(file=io.StringIO(), width=80)
    console.print(Traceback.from_exception(type(error), error, error.__traceback__))
    return console.file.getvalue()


def main(directory):
    specification = importlib.util.spec_from_file_location("mistakes", f"{directory}/mistakes.py")
    mistakes = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(mistakes)
    for name, function in vars(mistakes).items():
        if not name.startswith("mistake_"):
            continue
        told = {"name": name.removeprefix("mistake_"), "plain": None, "drawn": None, "warned": ""}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                function()
            except Exception as error:
                told["plain"], told["drawn"] = traceback.format_exc(), drawn(told["name"], error)
        told["warned"] = "\n".join(
            warnings.formatwarning(each.message, each.category, each.filename, each.lineno) for each in caught
        )
        print("TOLD " + json.dumps(told), flush=True)


main(sys.argv[1])
