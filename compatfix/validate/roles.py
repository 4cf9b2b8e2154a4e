"""What the parameters of a generation function mean: roles, their published spellings, and what users say of the rest.

Free of torch, and shared by the search in the source (tree_source), the one in the imported modules (load_tree) and the
command line, so that the three cannot disagree.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from compatfix.errors import UsageError

Kind = Literal["chain", "tree", "loop"]
KINDS: tuple[Kind, ...] = ("chain", "tree", "loop")


@dataclass(frozen=True)
class Role:
    """`spellings` in order of preference."""

    name: str
    spellings: tuple[str, ...]
    meaning: str


ROLES = (
    # "model" is the draft in DFlash and DDTree; where another parameter is plainly the draft, it is the target.
    Role("draft", ("draft", "draft_model", "drafter", "model"), "the draft model"),
    Role("target", ("target", "target_model", "base_model", "model"), "the target model"),
    Role("input_ids", ("input_ids", "prompt_ids"), "the prompt, a tensor of shape (1, n)"),
    Role("max_new_tokens", ("max_new_tokens", "max_tokens"), "how many tokens to generate at most"),
    Role("stop_token_ids", ("stop_token_ids", "stop_ids", "eos_token_ids"), "a list of stop tokens, or None"),
    Role("block_size", ("block_size", "block_length"), "tokens of a block; 1 is plain decoding"),
    Role("tree_budget", ("tree_budget", "budget"), "nodes of the draft tree; makes an entry point a tree's"),
    Role("mask_token_id", ("mask_token_id", "mask_id"), "the draft's mask token"),
    Role("temperature", ("temperature",), "0 for greedy decoding"),
    Role("top_p", ("top_p",), "given when sampling is judged"),
    Role("top_k", ("top_k",), "given when sampling is judged"),
    # Without it dflash 0.1.0 returns a bare tensor and keeps its accepted lengths to itself.
    Role("return_stats", ("return_stats", "return_dict_in_generate"), "true: lengths come with the text"),
    Role("device", ("device",), "the target's device"),
    Role("verbose", ("verbose", "show_progress"), "false"),
)
BY_NAME = {role.name: role for role in ROLES}
MODELS = ("target", "draft")
# What makes a function a generation function, models aside: a method may hold its draft in self.
GENERATES = frozenset({"input_ids", "max_new_tokens", "stop_token_ids"})
# Without these nothing can be run under control, whoever names the entry point.
LEAST = frozenset({"input_ids", "max_new_tokens", *MODELS})
_ENTRY = re.compile(r"(?:(?P<kind>\w+)=)?(?P<module>[\w.]+):(?P<function>[\w.]+)")
_RESULT = re.compile(r"(?:(?P<entry>[\w.]+:[\w.]+)=)?(?P<field>[^:=]*)(?P<new>:new)?")
_ARGUMENT = re.compile(r"(?:(?P<entry>[\w.]+:[\w.]+)\.)?(?P<name>\w+)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class EntryChoice:
    """--entry: `kind` None leaves chain or tree to the tree budget among the parameters."""

    module: str
    function: str
    kind: Kind | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


@dataclass(frozen=True)
class ArgumentChoice:
    """--argument: a role or a literal for the parameter `name`, of one entry point ("module:function") or of all."""

    name: str
    role: str | None
    literal: Any = None
    entry: str | None = None


@dataclass(frozen=True)
class ResultChoice:
    """--result: where the output ids are, in the result of one entry point ("module:function") or of all.

    `field` is a name, or an index of a tuple, and None where it is to be found; `only_new` says that the prompt is not
    among the ids.
    """

    field: str | None = None
    only_new: bool = False
    entry: str | None = None

    def __str__(self) -> str:
        return f"{self.entry}=" * bool(self.entry) + (self.field or "") + ":new" * self.only_new


@dataclass(frozen=True)
class Choices:
    """What the user said of a tree's entry points; all of it empty for a tree in a published shape."""

    entries: tuple[EntryChoice, ...] = ()
    arguments: tuple[ArgumentChoice, ...] = ()
    results: tuple[ResultChoice, ...] = ()

    def result_of(self, place: str) -> ResultChoice:
        """What was said of the result of one entry point, or else of all."""
        said = {choice.entry: choice for choice in self.results}
        return said.get(place) or said.get(None) or ResultChoice()


# What a sampler's parameter is where nothing is sampled, for a function that has no default for it.
NEUTRAL: dict[str, Any] = {"top_p": 1.0, "top_k": 0}


@dataclass(frozen=True)
class CallMap:
    """How one function is called: the parameter of each role, literals by parameter, and what nothing is known for."""

    roles: Mapping[str, str] = field(default_factory=dict)
    literals: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    said: frozenset[str] = frozenset()

    @property
    def covered(self) -> set[str]:
        return {*self.roles.values(), *self.literals}

    def __str__(self) -> str:
        """Only what a reader of the signature could not tell."""
        told = [f"{name}={role}" for role, name in self.roles.items() if name != role]
        return ", ".join([*told, *(f"{name}={json.dumps(value)}" for name, value in self.literals.items())])


def parse_choices(entries: Iterable[str] = (), arguments: Iterable[str] = (), results: Iterable[str] = ()) -> Choices:
    """The values of --entry, --argument and --result. Raises UsageError for what cannot be read."""
    found = tuple(_result(text) for text in results)
    for number, choice in enumerate(found):
        twice = next((earlier for earlier in found[:number] if earlier.entry == choice.entry), None)
        if twice is not None:
            whose = choice.entry or "every entry point"
            raise UsageError(f"--result {choice}: --result {twice} says already where the result of {whose} holds ids")
    return Choices(tuple(_entry(text) for text in entries), tuple(_argument(text) for text in arguments), found)


def roles_of(names: Sequence[str], without: Iterable[str] = ()) -> dict[str, str]:
    """The parameter of each role among these names, by the published spellings; roles `without` are left out."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for role in ROLES:
        if role.name in without:
            continue
        name = next((spelling for spelling in role.spellings if spelling in names and spelling not in taken), None)
        if name is not None:
            found[role.name] = name
            taken.add(name)
    return found


def generates(names: Sequence[str]) -> bool:
    """Whether a function with these parameters is a generation function, its models aside."""
    return roles_of(names).keys() >= GENERATES


def map_parameters(
    signature: inspect.Signature, said: Iterable[ArgumentChoice] = (), *, without: Iterable[str] = ()
) -> CallMap:
    """Roles by spelling, and by what was said of this function, which goes first. A method is `without` a draft."""
    parameters = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    chosen = {choice.name: choice for choice in said if choice.name in parameters or _takes_any(signature)}
    by_role = {choice.role: name for name, choice in chosen.items() if choice.role is not None}
    rest = roles_of([name for name in parameters if name not in chosen], {*without, *by_role})
    roles = {**rest, **by_role}
    literals = {name: choice.literal for name, choice in chosen.items() if choice.role is None}
    covered = {*roles.values(), *literals}
    missing = tuple(n for n, p in parameters.items() if p.default is p.empty and n not in covered)
    return CallMap(roles, literals, missing, frozenset(chosen))


def call_arguments(
    signature: inspect.Signature, mapping: CallMap, values: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for a call, from values by role; a required one without a value is neutral."""
    required = {p.name for p in signature.parameters.values() if p.default is p.empty}
    neutral = {role: value for role, value in NEUTRAL.items() if mapping.roles.get(role) in required}
    known = {**neutral, **values}
    given = {name: known[role] for role, name in mapping.roles.items() if role in known}
    given |= mapping.literals
    positional: list[Any] = []
    only_positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY]
    for parameter in only_positional:
        if parameter.name not in given and not any(later in given for later in _after(only_positional, parameter)):
            break
        positional.append(given.pop(parameter.name, parameter.default))
    return positional, given


def closest(word: str, known: Iterable[str]) -> str:
    """The names that were perhaps meant, or all of them, for the end of a message."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(names[:12])}" if names else "there are none"


def advice(entry: str, missing: Sequence[str], lacking: Iterable[str] = ()) -> str:
    """The options that would make an entry point runnable: parameters to be told, roles that lack a parameter.

    Which parameter has which of several roles is not guessed: an advice that is copied must not swap two models.
    """
    wanted = sorted(lacking, key=list(BY_NAME).index)
    if not missing:
        told = [f"--argument NAME={role}" for role in wanted]
    elif len(missing) == len(wanted) == 1:
        told = [f"--argument {missing[0]}={wanted[0]}"]
    elif wanted:
        told = [f"--argument {name}=ROLE" for name in missing]
        told += [f"(ROLE: {', '.join(wanted)}, another role, or a JSON value)"]
    else:
        told = [f"--argument {name}=VALUE" for name in missing]
    return " ".join([f"--entry {entry}", *told])


def _after(parameters: Sequence[inspect.Parameter], parameter: inspect.Parameter) -> list[str]:
    return [other.name for other in parameters[parameters.index(parameter) + 1 :]]


def _takes_any(signature: inspect.Signature) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _entry(text: str) -> EntryChoice:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise UsageError(f"--entry {text}: write [chain=|tree=|loop=]module:function, such as tree=ddtree:generate")
    kind = next((known for known in KINDS if known == match["kind"]), None)
    if match["kind"] and kind is None:
        raise UsageError(f"--entry {text}: {match['kind']!r} is no kind of entry point; {', '.join(KINDS)} are")
    return EntryChoice(match["module"], match["function"], kind)


def shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _argument(text: str) -> ArgumentChoice:
    match = _ARGUMENT.fullmatch(text)
    if match is None:
        raise UsageError(f"--argument {text}: write NAME=ROLE, NAME=literal or module:function.NAME=…")
    value = match["value"].strip()
    if value in BY_NAME:
        return ArgumentChoice(match["name"], value, entry=match["entry"])
    try:
        literal = json.loads(value)
    except ValueError:
        known = closest(value, BY_NAME)
        raise UsageError(
            f"--argument {shortened(text)}: {shortened(value)!r} is neither a role ({known}) nor a JSON literal "
            "(text needs quotes)"
        ) from None
    except RecursionError:
        raise UsageError(f"--argument {shortened(text)}: nested too deeply") from None
    return ArgumentChoice(match["name"], None, literal, match["entry"])


def _result(text: str) -> ResultChoice:
    match = _RESULT.fullmatch(text)
    if match is None or not (match["field"] or match["new"]):
        forms = "FIELD, FIELD:new or :new (the output holds only the new tokens)"
        raise UsageError(f"--result {text}: write {forms}, behind module:function= if it is of one entry point")
    return ResultChoice(match["field"] or None, match["new"] is not None, match["entry"])
