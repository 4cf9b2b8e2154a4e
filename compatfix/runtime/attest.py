"""At the first verified block: is what runs here what was judged? One line on standard error says so.

`compatfix gate` and `validate` leave attest.json in a patched tree's compatfix_runtime when they end green; the
environment variable COMPATFIX_VERDICT names another one. COMPATFIX_ATTEST=off silences the line, `all` lists every
difference, `require` raises RuntimeRefusal unless everything is as it was judged.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .refusal import RuntimeRefusal
from .surroundings import imported_files, observed, tree_root

FILE = "attest.json"
SCHEMA = 1
WAY = "COMPATFIX_ATTEST"
VERDICT = "COMPATFIX_VERDICT"
_SHOWN = 3

_draft: list[weakref.ref[nn.Module]] = []
_compared: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_told: set[str] = set()


def note_draft(draft: Any) -> None:
    """Remembers, without holding it, the draft that is in use."""
    if isinstance(draft, nn.Module) and (not _draft or _draft[0]() is not draft):
        _draft[:] = [weakref.ref(draft)]


def tell(target: nn.Module, strategy: str | None) -> None:
    """Once for each target: compares what runs with what was judged, and says in one line what came of it."""
    if target in _compared:
        return
    _compared.add(target)
    way = os.environ.get(WAY, "").lower()
    root = tree_root()
    if way == "off" or root is None:
        return
    try:
        same, line = compare(root, observed(target, _draft[0]() if _draft else None, strategy), way == "all")
    except Exception as error:  # a comparison that fails must not end a generation
        same, line = False, f"cannot compare with the last verdict ({type(error).__name__}: {error})"
    if way == "require" and not same:
        _compared.discard(target)
        raise RuntimeRefusal(f"{line} ({WAY}=require)")
    # Every process of a distributed run has the same to say.
    first = all(os.environ.get(name, "0") in ("", "0") for name in ("RANK", "SLURM_PROCID"))
    if first and line not in _told:
        _told.add(line)
        print(f"compatfix: {line}", file=sys.stderr, flush=True)


def compare(root: Path, now: Mapping[str, Any], everything: bool = False) -> tuple[bool, str]:
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
    found = [(list(differences(entry, now, root)), entry) for entry in entries]
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


def differences(entry: Mapping[str, Any], now: Mapping[str, Any], root: Path) -> Iterator[str]:
    """What differs between a verdict and what runs, most telling first, in words."""
    yield from _files(entry["tree"], root)
    # Where real weights were judged, the tiny model's run says less than theirs.
    on = "weights" if entry["scopes"].get("weights") == "passed" else "tiny"
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
    for name in sorted(run["flags"].keys() | now["flags"].keys()):
        old, new = run["flags"].get(name), now["flags"].get(name)
        if old != new:
            yield f"{name} is {'unset' if new is None else new}, judged {'unset' if old is None else old}"
    if run["strategy"] is not None and now["strategy"] != run["strategy"]:
        yield f"verification is by {now['strategy']}, judged {run['strategy']}"
    for part in ("draft", "target"):
        yield from _config(part, run[part], now[part])


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
    # The digest speaks of values in one dtype only; weights that lie on no device have none.
    digests = {old["weights"], new["weights"]}
    if len(digests) > 1 and None not in digests and old["dtype"] == new["dtype"]:
        yield f"{part} weights differ"


def _config(part: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    """What both configs say differently. None: a draft that was made up, or a config that could not be read."""
    judged, now = ((model and model["config"]) or {} for model in (old, new))
    for name in sorted(judged.keys() & now.keys()):
        if now[name] != judged[name]:
            yield f"{part} {name} is {_short(now[name])}, judged {_short(judged[name])}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
