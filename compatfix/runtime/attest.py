"""At the first verified block: is what runs here what was judged? One line on standard error says so.

`compatfix gate` and `validate` leave attest.json in a patched tree's compatfix_runtime when they end green; the
environment variable COMPATFIX_VERDICT names another one. COMPATFIX_ATTEST=off silences the line, `all` lists every
difference, `require` raises RuntimeRefusal unless everything is as it was judged; another value raises it too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .code_in_use import caller
from .refusal import RuntimeRefusal
from .surroundings import imported_files, observed, tree_root

FILE = "attest.json"
SCHEMA = 2
WAY = "COMPATFIX_ATTEST"
VERDICT = "COMPATFIX_VERDICT"
_WAYS = ("off", "all", "require")
_SHOWN = 3

_draft: list[weakref.ref[nn.Module]] = []
# By target: the drafts with which it was compared; the target itself stands for none.
_compared: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()
_told: set[str] = set()


def note_draft(draft: Any) -> None:
    """Remembers, without holding it, the draft that is in use."""
    if isinstance(draft, nn.Module) and (not _draft or _draft[0]() is not draft):
        _draft[:] = [weakref.ref(draft)]


def tell(target: nn.Module, strategy: str | None) -> None:
    """Once for each target and draft: compares what runs with what was judged, and says in a line what came of it."""
    draft = _draft[0]() if _draft else None
    pairs = _compared.setdefault(target, weakref.WeakSet())
    if (draft if draft is not None else target) in pairs:
        return
    way = os.environ.get(WAY, "").strip().casefold()
    if way and way not in _WAYS:
        raise RuntimeRefusal(printable(f"{WAY}={way} is none of {', '.join(_WAYS)}"))
    root = tree_root()
    same, line = False, ""
    if way != "off" and root is not None:
        try:
            same, line = compare(root, observed(target, draft, strategy), way == "all", caller())
        except Exception as error:  # a comparison that fails must not end a generation
            line = f"cannot compare with the last verdict ({type(error).__name__}: {error})"
        line = printable(line)
        if way == "require" and not same:
            raise RuntimeRefusal(f"{line} ({WAY}=require)")
    pairs.add(draft if draft is not None else target)
    # Every process of a distributed run has the same to say.
    first = all(os.environ.get(name, "0") in ("", "0") for name in ("RANK", "SLURM_PROCID"))
    if line and first and line not in _told:
        _told.add(line)
        _say(f"compatfix: {line}")


def printable(text: str) -> str:
    """Fit for a terminal, whatever a file or a name holds: control characters are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _say(line: str) -> None:
    """On standard error, if there is one that takes it."""
    if sys.stderr is None:
        return  # print would take standard output
    with contextlib.suppress(Exception):
        print(line, file=sys.stderr, flush=True)


def compare(root: Path, now: Mapping[str, Any], everything: bool, called_from: str) -> tuple[bool, str]:
    """Whether all is as judged, and the line that says so or names what differs; the nearest verdict is taken."""
    named = os.environ.get(VERDICT)
    place = Path(named) if named else root / "compatfix_runtime" / FILE
    try:
        saved = json.loads(place.read_text(encoding="utf-8"))
        if saved["schema"] != SCHEMA:
            return False, f"{place} was written by another version of compatfix (schema {saved['schema']}); gate again"
        entries = list(saved["verdicts"].values())
    except FileNotFoundError:
        entries = []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return False, f"{place} cannot be read ({type(error).__name__}: {error})"
    if not entries:
        return False, f"no green verdict is kept for this tree ({place}); compatfix gate {root} --target … leaves one"
    found = [(list(differences(entry, now, root, called_from)), entry) for entry in entries]
    different, entry = min(found, key=lambda pair: (len(pair[0]), -list(pair[1]["scopes"].values()).count("passed")))
    states: Mapping[str, str] = entry["scopes"]
    kinds = sorted(set(states.values()), key=lambda state: (state != "passed", state))
    told = [f"{', '.join(name for name, state in states.items() if state == kind)} {kind}" for kind in kinds]
    verdict = f"{entry['time']} ({'; '.join(told)})"
    if not different:
        return True, f"as judged {verdict}"
    shown = different if everything else different[:_SHOWN]
    more = f"; and {len(different) - len(shown)} more, {WAY}=all lists them" if len(different) > len(shown) else ""
    return False, f"not as judged {verdict}: {'; '.join(shown)}{more}"


def differences(entry: Mapping[str, Any], now: Mapping[str, Any], root: Path, called_from: str) -> Iterator[str]:
    """What differs between a verdict and what runs, most telling first, in words."""
    yield from _files(entry["tree"], root)
    loop = Path(called_from).resolve()
    if not loop.is_relative_to(root):
        yield f"verify is called from {called_from}, outside the tree"
    elif loop.relative_to(root).as_posix() not in entry["tree"]:
        yield f"verify is called from {loop.relative_to(root).as_posix()}, which was not judged"
    # Where real weights were judged, the tiny model's run says less than theirs; a slice's has the user's kernels.
    passed = [scope for scope, state in entry["scopes"].items() if state == "passed"]
    on = "weights" if "weights" in passed else "slice" if "kernels" in passed else "tiny"
    runs = [run for run in entry["runs"] if run["on"] == on] or entry["runs"]
    yield from min((list(_observed(run, now)) for run in runs), key=len)


def _files(judged: Mapping[str, str], root: Path) -> Iterator[str]:
    here = dict(imported_files(root))
    for name, digest in sorted(here.items()):
        if name not in judged:
            yield f"{name} was not there"
        elif judged[name] != digest:
            yield f"{name} differs"
    # A copy of the tree that is installed elsewhere comes first on many paths.
    for name in sorted(judged.keys() - here.keys()):
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if dotted in ("setup", "conftest", "__init__", "__main__"):
            continue
        file = getattr(sys.modules.get(dotted), "__file__", None)
        if isinstance(file, str) and not Path(file).resolve().is_relative_to(root):
            yield f"module {dotted} comes from {file}"


def _observed(run: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for part in ("draft", "target"):
        yield from _model(part, run[part], now[part])
    for name in sorted(run["packages"].keys() | now["packages"].keys()):
        old, new = run["packages"].get(name), now["packages"].get(name)
        if old != new:
            yield f"{name} is {new or 'not loaded'}, judged {old or 'without it'}"
    for name in sorted(now["libraries"]):
        if name not in run["libraries"]:
            yield f"module {name} was not in use"
        elif run["libraries"][name] != now["libraries"][name]:
            yield f"module {name} differs"
    yield from _code(run, now)
    for name in sorted(run["flags"].keys() | now["flags"].keys()):
        old, new = run["flags"].get(name), now["flags"].get(name)
        if old != new:
            yield f"{name} is {'unset' if new is None else new}, judged {'unset' if old is None else old}"
    if run["strategy"] is not None and now["strategy"] != run["strategy"]:
        yield f"verification is by {now['strategy']}, judged {run['strategy']}"
    for part in ("draft", "target"):
        yield from _config(part, run[part], now[part])


def _code(run: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Code that was put in the place of what the files say. What differs with its file is told of that."""
    edited = {name for name, digest in now["libraries"].items() if run["libraries"].get(name) != digest}
    for name in sorted(now["forwards"].keys() & run["forwards"].keys()):
        if now["forwards"][name] != run["forwards"][name] and not any(name.startswith(f"{m}.") for m in edited):
            yield f"the forward of {name.rpartition('.')[2]} is other code"
    yield from sorted(set(now["attached"]) - set(run["attached"]))
    for name in sorted(now["functions"].keys() & run["functions"].keys()):
        if now["functions"][name] != run["functions"][name] and name.rpartition(".")[0] not in edited:
            yield f"function {name} is that of {now['functions'][name]}"


def _model(part: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    if old is None or new is None:
        if new is not None:
            yield f"a {part} is in use, judged without one"
        elif old is not None:
            yield f"no {part} was seen, judged with {old['class']}"
        return
    if (old["class"], old["file"]) != (new["class"], new["file"]):
        yield f"{part} class is {new['class']} of {new['file']}, judged {old['class']} of {old['file']}"
    for name in ("dtype", "attention", "device", "quantised", "compiled", "training"):
        if old[name] != new[name]:
            yield f"{part} {name} is {new[name]}, judged {old[name]}"
    if old["attention"] == new["attention"] and old["attention code"] != new["attention code"]:
        yield f"the {new['attention']} attention of the {part} is another function"
    # Some classes count otherwise than their configs; those did when they were judged.
    if new["layers"] is not None and new["layers"][0] != new["layers"][1] and len(set(old["layers"] or ())) < 2:
        yield f"{part} has {new['layers'][0]} layers, its config says {new['layers'][1]}"
    # The digest speaks of values in one dtype only; weights that lie on no device have none.
    digests = {old["weights"], new["weights"]}
    if len(digests) > 1 and None not in digests and old["dtype"] == new["dtype"]:
        yield f"{part} weights differ"
    if None not in (old["buffers"], new["buffers"]) and old["dtype"] == new["dtype"]:
        for name in sorted(old["buffers"].keys() & new["buffers"].keys()):
            # A table is computed anew on each device.
            if not math.isclose(old["buffers"][name], new["buffers"][name], rel_tol=1e-4, abs_tol=1e-6):
                yield f"{part} buffer {name} differs"


def _config(part: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    """What the configs say differently; what is not said is None. A config may be missing: a draft that was made up, or
    one that could not be read."""
    if old is None or new is None or old["config"] is None or new["config"] is None:
        return
    judged, now = old["config"], new["config"]
    for name in sorted(judged.keys() | now.keys()):
        # Loading a quantised model fills its settings in; the method is compared. A text model comes without the whole.
        if name.startswith(("quantization_config.", "whole.")) and not (name in judged and name in now):
            continue
        if now.get(name) != judged.get(name):
            yield f"{part} {name} is {_short(now.get(name))}, judged {_short(judged.get(name))}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
