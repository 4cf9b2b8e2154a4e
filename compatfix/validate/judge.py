"""From measurements to a verdict: pure functions, data in and data out. The only place where anything is called passed.

A scope is passed only if everything that was planned ran, agreed, was exercised, and would have been caught had it been
wrong. What is not known is not passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compatfix.codes import CODES
from compatfix.model import Finding, Location, ScopeVerdict
from compatfix.validate.judge_claims import Named, beside_the_text, without_lengths
from compatfix.validate.judge_long_run import open_long_run, praise_long_run, wrong_long_run
from compatfix.validate.judge_noise import corrupted_checks, unchecked
from compatfix.validate.judge_sampling import open_sampling, praise_sampling, wrong_sampling
from compatfix.validate.raised import raised, state_text
from compatfix.validate.tally import Tally

FEWEST_FAULTS = 7
# A run of fewer prompts or tokens says so; one below the second pair decides nothing.
FULL_RUN = (24, 64)
SMALLEST_RUN = (8, 16)
AT_LEAST = f"at least {SMALLEST_RUN[0]} prompts, and {SMALLEST_RUN[1]} tokens of each, are needed"
MOST_FORWARDS = 1.1
SITUATIONS = (
    "full acceptance",
    "stop token inside a path",
    "first token is a stop",
    "stop token in a later round",
    "stop token behind an accepted path",
    "mask token in the output",
    "length limit inside a path",
    "length limit of one token",
    "stop token in the prompt",
    "mask token in the prompt",
)


@dataclass(frozen=True)
class CodeData:
    """What the tasks measured. `errors` are findings of tasks without a result; `skipped` tasks were not started."""

    references: Sequence[Mapping[str, Any]] = ()
    plain: Tally | None = None
    modes: Sequence[Tally] = ()
    exercised: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    faults: Sequence[Mapping[str, Any]] = ()
    bf16: Mapping[str, Any] | None = None
    subject: Mapping[str, Any] = field(default_factory=dict)
    errors: Sequence[Finding] = ()
    skipped: Sequence[str] = ()
    sampling: Mapping[str, Any] | None = None
    long_run: Mapping[str, Any] | None = None


def judge_code(data: CodeData) -> tuple[ScopeVerdict, tuple[Finding, ...]]:
    """The verdict of scope code. Failed: something is wrong. Undecided: something that matters is not known."""
    wrong = [
        *data.errors,
        *_exceptions(data),
        *_references(data),
        *_differences(data),
        *_prompts(data),
        *beside_the_text(_named(data)),
        *_drafts(data),
        *_bf16(data),
        *wrong_sampling(data.sampling),
        *wrong_long_run(data.long_run),
    ]
    notes = [*_notes(data), *without_lengths(_named(data))]
    failed = [finding for finding in wrong if finding.level == "error"]
    if failed:
        step = failed[0].fix or CODES[failed[0].code].do or None
        return ScopeVerdict("code", "failed", failed[0].message, step), (*wrong, *notes)
    open_questions = [
        *_not_exercised(data),
        *_faults(data),
        *open_sampling(data.sampling),
        *open_long_run(data.long_run),
    ]
    if open_questions:
        first = open_questions[0]
        more = f" (and {len(open_questions) - 1} more)" if len(open_questions) > 1 else ""
        step = first.fix or CODES[first.code].do or None
        verdict = ScopeVerdict("code", "undecided", _reduced(data) + first.message + more, step)
        return verdict, (*wrong, *open_questions, *notes)
    return ScopeVerdict("code", "passed", _reduced(data) + _praise(data)), (*wrong, *notes)


def _exceptions(data: CodeData) -> list[Finding]:
    found: dict[tuple[Any, ...], tuple[list[str], Mapping[str, Any]]] = {}
    named = [(_name(data, tally["mode"]), tally["error"]) for tally in (data.plain, *data.modes) if tally is not None]
    named += [(f"{row['mode']} in bf16", row["error"]) for row in (data.bf16 or {}).get("modes", ())]
    for mode, error in named:
        if error is not None:
            modes, _ = found.setdefault(_cause(error), ([], error))
            modes.append(mode)
    return [
        raised(", ".join(dict.fromkeys(modes)) if error.get("code") else modes[0], error)
        for modes, error in found.values()
    ]


def _cause(error: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same for errors that one repair would end."""
    if error.get("code"):
        # The message tells of one text, and the next one is of another length.
        return error["code"], error["details"]["entry"]
    place = error.get("place") or {}
    return error["type"], error["message"], place.get("file"), place.get("line")


def _name(data: CodeData, mode: str) -> str:
    """The draft's own loop by the name of its entry point, other modes by their own."""
    return str(data.subject.get("loop") or mode).rpartition(".")[2] if mode == "loop" else mode


def _named(data: CodeData) -> list[Named]:
    return [(_name(data, tally["mode"]), tally) for tally in (data.plain, *data.modes) if tally is not None]


def _references(data: CodeData) -> list[Finding]:
    disagreements = [d for reference in data.references for d in reference["disagreements"]]
    if not disagreements:
        return []
    first = disagreements[0]
    message = (
        f"plain decoding disagrees with itself: {first['ways'][0]} and {first['ways'][1]} differ at token "
        f"{first['index']} of prompt {first['prompt']} ({len(disagreements)} of {len(data.references)} prompts)"
    )
    return [Finding("CF904", "error", "measured", message, details={"disagreements": disagreements})]


def _differences(data: CodeData) -> list[Finding]:
    found = []
    for tally in data.modes:
        if tally["differences"]:
            first = tally["differences"][0]
            message = f"{_name(data, tally['mode'])} is not lossless ({tally['profile']}): {describe_difference(first)}"
            details = {"mode": tally["mode"], "profile": tally["profile"], "first": first}
            same = {"same": tally["same"], "run": tally["run"], "planned": tally["planned"]}
            found.append(Finding("CF901", "error", "measured", message, details={**details, **same}))
        bad = tally["nodes"]["bad"]
        if bad is not None:
            message = (
                f"{_name(data, tally['mode'])}: the logits of node {bad['node']} in round {bad['round']} of prompt "
                f"{bad['prompt']} are {bad['difference']:.2g} off a plain forward over its root path "
                f"(allowed {bad['allowed']:.2g})"
            )
            found.append(Finding("CF901", "error", "measured", message, details={"mode": tally["mode"], **bad}))
    return found


def describe_difference(first: Mapping[str, Any]) -> str:
    """Prompt, token, both candidates, margin, layer: the first difference in one sentence."""
    where = f", {first['where']}" if first.get("where") else ""
    text = f"prompt {first['prompt']}{where}: token {first['index']} is {_token(first['got'])}, "
    text += f"plain decoding gives {_token(first['expected'])} (margin {first['margin']:.3g})"
    state = first.get("state")
    if state:
        text += f"; {state_text(state)}"
    elif "state" in first:
        text += "; the target's cache is right, so the fault is in what is accepted or returned"
    return text


def _token(token: int | None) -> str:
    return "missing" if token is None else str(token)


def _prompts(data: CodeData) -> list[Finding]:
    found = []
    for tally in (data.plain, *data.modes):
        if tally is not None and tally["prompts"]:
            first = tally["prompts"][0]
            where = f" ({first['where']})" if first["where"] else ""
            message = f"{_name(data, tally['mode'])}: output_ids does not begin with prompt {first['prompt']}{where}"
            message += f"; if it returns only the new tokens by design, say so with --result {_only_new(data, tally)}"
            found.append(Finding("CF901", "error", "measured", message, details={"mode": tally["mode"], **first}))
    return found


def _only_new(data: CodeData, tally: Tally) -> str:
    """The value of --result that says so of the entry point of this mode, and leaves its field as it is."""
    kind = tally["mode"].partition("-")[0]
    run = {entry["kind"]: entry for entry in data.subject.get("entry_points", ())}
    entry = run.get("chain" if kind == "plain" else kind) or run.get("tree")
    if entry is None:
        return ":new"
    return f"{entry['entry']}={entry['result']['field'] or ''}:new"


def _drafts(data: CodeData) -> list[Finding]:
    """What the draft was given. Tokens stay right, and acceptance falls without anybody noticing."""
    found = []
    for tally in data.modes:
        if tally["noise"]:
            first = tally["noise"][0]
            what = "the mask token" if first["row"] else "the last committed token"
            message = (
                f"{_name(data, tally['mode'])}: row {first['row']} of the draft's noise_embedding is not the embedding "
                f"of {what} ({first['expected']}) in round {first['round']} of prompt {first['prompt']}"
            )
            found.append(Finding("CF916", "error", "measured", message, details={"mode": tally["mode"], **first}))
        for name, words in (("features", "context features"), ("draft_cache", "the draft's own cache")):
            if tally[name]:
                first = tally[name][0]
                message = f"{_name(data, tally['mode'])}: {words} differ from those of plain decoding"
                message += f" on prompt {first['prompt']}"
                if first.get("difference") is not None:
                    message += f" by {first['difference']:.2g} (allowed {first['allowed']:.2g})"
                message += "; the text stays right, the draft sees the wrong input"
                found.append(Finding("CF916", "error", "measured", message, details={"mode": tally["mode"], **first}))
    return found


def _bf16(data: CodeData) -> list[Finding]:
    found = []
    for row in (data.bf16 or {}).get("modes", ()):
        assert data.bf16 is not None
        bad = [d for d in row["differences"] if d["kind"] == "corruption"]
        if bad:
            first = bad[0]
            behind = "missing" if first["behind"] is None else f"{first['behind']:.3g} behind"
            message = (
                f"{row['mode']} in bf16: token {first['index']} of prompt {first['prompt']} is {_token(first['got'])}, "
                f"{behind} in plain decoding, noise {data.bf16['noise']:.2g} ({len(bad)} of {row['run']} prompts)"
            )
            found.append(Finding("CF909", "error", "measured", message, details={"mode": row["mode"], "first": first}))
        found += corrupted_checks(f"{row['mode']} in bf16", row)
    return found


def _not_exercised(data: CodeData) -> list[Finding]:
    missing = [f"{name} was not run" for name in data.skipped]
    if not data.modes:
        missing.append("no mode was run")
    for tally in data.modes:
        name = f"{_name(data, tally['mode'])}, {tally['profile']}"
        if tally["run"] != tally["planned"]:
            missing.append(f"{name}: {tally['run']} of {tally['planned']} prompts run")
        if tally["lost"]:
            missing.append(f"{name}: the text could not be followed in {tally['lost']} rounds")
        if not tally["features_checked"] and tally["profile"] == "oracle":
            missing.append(f"{name}: context features were not compared")
        if not tally["drafts_checked"] and tally["profile"] == "oracle":
            missing.append(f"{name}: the draft was not replayed without its cache")
    for mode in dict.fromkeys(tally["mode"] for tally in data.modes):
        # One drafted token is accepted or not.
        kinds = ("full", "zero") if mode == "tree-1" or data.subject.get("block") == 2 else ("full", "partial", "zero")
        accepted = {kind: _sum(data, mode, kind) for kind in kinds}
        name = _name(data, mode)
        missing += [f"{name}: {kind} acceptance never occurred" for kind, count in accepted.items() if not count]
        seen = data.exercised.get(mode, {})
        missing += [f"{name}: {situation} never occurred" for situation in SITUATIONS if not seen.get(situation)]
    missing += [f"not judged: {name}" for name in data.subject.get("not_judged", ())]
    missing += [text for mode in dict.fromkeys(tally["mode"] for tally in data.modes) for text in _shapes(data, mode)]
    missing += _lengths(data)
    missing += _too_small(data)
    missing += _slow_baseline(data)
    if data.bf16 is None and "bf16" not in data.skipped:
        missing.append("bf16 was not run")
    missing += unchecked("bf16", data.bf16)
    return [Finding("CF903", "error", "measured", text) for text in missing]


SHAPES = {
    "siblings": "no tree with siblings was verified",
    "whole budget": "no tree used its whole budget",
    "whole depth": "no tree was as deep as the block",
    "path off the first child": "no accepted path left the first child",
    "path of whole depth": "no path was accepted to the depth of the block",
}


def _shapes(data: CodeData, mode: str) -> list[str]:
    """Shapes of trees that a mode must have verified, and has not; a tree of one node can have none but its own."""
    kind, _, budget = mode.partition("-")
    tallies = [tally for tally in data.modes if tally["mode"] == mode]
    if kind != "tree" or not tallies:
        return []
    wanted = [shape for shape in SHAPES if int(budget) > 1 or not shape.startswith(("siblings", "path off"))]
    return [f"{mode}: {SHAPES[shape]}" for shape in wanted if not any(tally["shapes"][shape] for tally in tallies)]


def _sum(data: CodeData, mode: str, kind: str) -> int:
    return sum(int(tally["accepted"][kind]) for tally in data.modes if tally["mode"] == mode)


def _size(data: CodeData) -> tuple[int, int] | None:
    """Prompts and tokens of the main experiment: the smallest that any mode had."""
    main = [tally for tally in data.modes if tally["profile"] == "oracle" and tally["mode"] != "loop"]
    sizes = [(tally["planned"], tally["tokens_planned"] // max(1, tally["planned"])) for tally in main]
    return (min(p for p, _ in sizes), min(t for _, t in sizes)) if sizes else None


def _reduced(data: CodeData) -> str:
    size = _size(data)
    if size is None or (size[0] >= FULL_RUN[0] and size[1] >= FULL_RUN[1]):
        return ""
    return f"reduced run: {size[0]} prompts x {size[1]} tokens; "


def _too_small(data: CodeData) -> list[str]:
    size = _size(data)
    if size is None or (size[0] >= SMALLEST_RUN[0] and size[1] >= SMALLEST_RUN[1]):
        return []
    return [f"{size[0]} prompts x {size[1]} tokens are too few to tell: {AT_LEAST}"]


def _slow_baseline(data: CodeData) -> list[str]:
    """Speed-ups are against the tree's own plain path, which needs one forward per token and one for the prompt."""
    plain = data.plain
    if plain is None or not plain["tokens"]:
        return []
    # The forward of the prompt is left out, or short texts would look slow.
    per_token = max(0, plain["forwards"] - plain["run"]) / plain["tokens"]
    if per_token <= MOST_FORWARDS:
        return []
    return [f"the baseline runs {per_token:.3g} forwards per token: speed-ups would be overstated"]


def _lengths(data: CodeData) -> list[str]:
    """Windows that wrapped, prompts shorter than a convolution kernel."""
    missing = []
    longest = max((r["prompt_length"] + r["text_length"] for r in data.references), default=0)
    shortest = min((r["prompt_length"] for r in data.references), default=0)
    for whose, size in data.subject.get("windows", {}).items():
        if longest <= size:
            missing.append(f"the {whose}'s window of {size} tokens never wrapped")
    kernel = data.subject.get("conv_kernel")
    if kernel and not 0 < shortest < kernel:
        missing.append(f"no prompt was shorter than the convolution kernel of {kernel}")
    return missing


def _faults(data: CodeData) -> list[Finding]:
    if "faults" in data.skipped:
        return []
    applicable = [fault for fault in data.faults if fault["applicable"]]
    found = [
        Finding("CF902", "error", "measured", f"planted fault not seen: {fault['name']} ({fault['what']})")
        for fault in applicable
        if not fault["caught"]
    ]
    if len(applicable) < FEWEST_FAULTS:
        text = f"only {len(applicable)} faults could be planted, {FEWEST_FAULTS} are needed"
        found.append(Finding("CF902", "error", "measured", text))
    return found


def _notes(data: CodeData) -> list[Finding]:
    notes = [
        Finding(
            "CF913", "note", "measured", f"{name} is not installed; a stub stood in for it", fix=f"pip install {name}"
        )
        for name in data.subject.get("stubbed", ())
    ]
    broken = data.subject.get("broken") or {}
    notes += [Finding("CF908", "warning", "read", error, Location(path)) for path, error in broken.items()]
    return notes


def _praise(data: CodeData) -> str:
    """What exactly passed, in numbers."""
    caught = sum(bool(fault["caught"]) for fault in data.faults)
    worst = max((tally["nodes"]["largest"] for tally in data.modes), default=0.0)
    return "; ".join(
        [
            f"greedy text equals plain decoding (tiny {data.subject.get('target_class')}, oracle draft): {_runs(data)}",
            _bf16_texts(data.bf16 or {}),
            f"{caught} planted faults caught",
            f"worst node {worst:.1g} off",
            *([praise_sampling(data.sampling)] if data.sampling is not None else []),
            *([praise_long_run(data.long_run)] if data.long_run is not None else []),
        ]
    )


def _runs(data: CodeData) -> str:
    """The modes that ran the same number of prompts and tokens, together: chain, tree-32 on 24 prompts x 64 tokens."""
    sizes: dict[tuple[int, int], list[str]] = {}
    for tally in data.modes:
        if tally["profile"] == "oracle":
            size = (tally["run"], tally["tokens_planned"] // max(1, tally["planned"]))
            sizes.setdefault(size, []).append(_name(data, tally["mode"]))
    return ", ".join(f"{', '.join(names)} on {run} prompts x {tokens} tokens" for (run, tokens), names in sizes.items())


def _bf16_texts(bf16: Mapping[str, Any]) -> str:
    rows = bf16.get("modes", ())
    run, same = sum(row["run"] for row in rows), sum(row["same"] for row in rows)
    rounding = sum(difference["kind"] == "rounding" for row in rows for difference in row["differences"])
    return f"bf16: {same} of {run} texts equal" + (f", {rounding} by rounding" if rounding else "")
