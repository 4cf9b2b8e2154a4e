"""Every published shape of an entry point is found and called; what does not fit is refused by name."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from transformers.utils import ModelOutput

from compatfix.errors import UsageError
from compatfix.validate import losslessness
from compatfix.validate.bench import CHAIN, LOOP, PLAIN, Bench, Mode, build_bench
from compatfix.validate.entries import Entry, TreeError
from compatfix.validate.entry_statement import entry_statement
from compatfix.validate.faults import run_faults
from compatfix.validate.job import entry_points, subject
from compatfix.validate.judge import CodeData, judge_code
from compatfix.validate.load_tree import load_tree
from compatfix.validate.results import NEW_FIELDS, OUTPUT_FIELDS, collected, read_output
from compatfix.validate.roles import ROLES, CallMap, call_arguments, map_parameters, parse_choices, roles_of
from tests.validate.conftest import TARGETS

pytestmark = pytest.mark.usefixtures("clean_modules")
PROMPT = [5, 6, 7]
HEAD = """
import torch
from speculate import generate


"""
# name -> (source behind HEAD, options, name of the chain)
SHAPES = {
    "tensor, no mask": (
        "def dflash_generate(model, target, input_ids, max_new_tokens, stop_token_ids, temperature=0.0, top_p=1.0,\n"
        "                    top_k=0, block_size=None, return_stats=False):\n"
        "    result = generate(model, target, input_ids, model.mask_token_id, max_new_tokens, block_size,\n"
        "                      stop_token_ids, None)\n"
        "    return result if return_stats == 'yes' else result.output_ids\n",
        {},
        "dflash_generate",
    ),
    "keyword-only, tensor and statistics": (
        "def run(draft_model, target_model, /, *, input_ids, max_new_tokens, stop_token_ids, block_size,\n"
        "        mask_token_id):\n"
        "    result = generate(draft_model, target_model, input_ids, mask_token_id, max_new_tokens, block_size,\n"
        "                      stop_token_ids, None)\n"
        "    return result.output_ids, {'accept_lengths': result.acceptance_lengths}\n",
        {},
        "run",
    ),
    "a generator of new tokens": (
        "def stream(model, target, input_ids, max_new_tokens, stop_token_ids, block_size, mask_token_id):\n"
        "    result = generate(model, target, input_ids, mask_token_id, max_new_tokens, block_size,\n"
        "                      stop_token_ids, None)\n"
        "    yield from result.output_ids[0, input_ids.shape[1]:].tolist()\n",
        {},
        "stream",
    ),
    "a coroutine": (
        "async def serve(model, target, input_ids, max_new_tokens, stop_token_ids, block_size, mask_token_id):\n"
        "    return generate(model, target, input_ids, mask_token_id, max_new_tokens, block_size,\n"
        "                    stop_token_ids, None)\n",
        {},
        "serve",
    ),
    "names of its own": (
        "def go(big, small, ids, n, stops, width, hole, config):\n"
        "    assert config is None\n"
        "    out = generate(small, big, ids, hole, n, width, stops, None)\n"
        "    return {'answer': out.output_ids[0, ids.shape[1]:].tolist()}\n",
        {
            "entries": ["shape:go"],
            "arguments": [
                *("big=target", "small=draft", "ids=input_ids", "n=max_new_tokens", "stops=stop_token_ids"),
                *("shape:go.width=block_size", "hole=mask_token_id", "config=null"),
            ],
            "results": ["answer:new"],
        },
        "go",
    ),
    "an asynchronous generator, named": (
        "async def drip(big, small, ids, n, stops, width, hole):\n"
        "    result = generate(small, big, ids, hole, n, width, stops, None)\n"
        "    for token in result.output_ids[0, ids.shape[1]:].tolist():\n"
        "        yield token\n",
        {
            "entries": ["shape:drip"],
            "arguments": [
                *("big=target", "small=draft", "ids=input_ids", "n=max_new_tokens", "stops=stop_token_ids"),
                *("width=block_size", "hole=mask_token_id"),
            ],
        },
        "drip",
    ),
}
# A chain, a tree and a draft's own loop, none of which can be found: each with names and a result of its own.
OTHERS = """
def straight(big, small, ids, n, stops, width, hole):
    result = generate(small, big, ids, hole, n, width, stops, None)
    return {"whole": result.output_ids}


def branching(big, small, ids, n, stops, width, hole, leaves):
    result = generate(small, big, ids, hole, n, width, stops, leaves)
    for token in result.output_ids[0, ids.shape[1]:].tolist():
        yield [token]
"""
OWN_LOOP = """
    async def speak(self, big, ids, n, stops):
        from speculate import generate

        result = generate(self, big, ids, self.mask_token_id, n, self.block_size, stops, None)
        return 0.5, result.output_ids[0, ids.shape[1]:].tolist()


def features("""
THREE = {
    "entries": ["shape:straight", "tree=shape:branching", "loop=draft:TinyDraft.speak"],
    "arguments": [
        *("big=target", "small=draft", "ids=input_ids", "n=max_new_tokens", "stops=stop_token_ids"),
        *("shape:straight.width=block_size", "shape:branching.width=block_size", "hole=mask_token_id"),
        "shape:branching.leaves=tree_budget",
    ],
    "results": ["whole", "shape:branching=:new", "draft:TinyDraft.speak=1:new"],
}
MODES = [CHAIN, Mode("tree", 8), LOOP]


@pytest.fixture
def shaped(variant):
    """The right tree with its own entry points out of the way, and one of another shape in shape.py."""

    def make(name: str, change=("", "")):
        root = variant()
        speculate = (root / "speculate.py").read_text()
        (root / "speculate.py").write_text(speculate.replace("stop_token_ids", "halting"))
        (root / "shape.py").write_text(HEAD + SHAPES[name][0].replace(*change))
        return root

    return make


def bench(root, **options) -> Bench:
    target, draft = str(TARGETS / "qwen3-8b"), str(TARGETS / "qwen3-8b-dflash")
    return build_bench({"tree": str(root), "target": target, "draft": draft, "seed": 0, **options})


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_found_called_and_lossless(shaped, name):
    _, options, function = SHAPES[name]
    made = bench(shaped(name), **options)
    assert (made.tree.chain.module, made.tree.chain.name, made.tree.tree) == ("shape", function, None)
    result = losslessness.run_losslessness(made, [0, 1], 12, [CHAIN], lambda *step: None)
    tally = result["modes"][0]
    assert (tally["same"], tally["run"], tally["error"], tally["prompts"]) == (2, 2, None, [])
    assert result["plain"]["same"] == 2
    # A plain run that speculates would take fewer forwards than tokens.
    assert made.run(PLAIN, [3, 4, 5], 8).watch.forwards >= 8


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("names of its own", ("ids.shape[1]:]", "ids.shape[1] + 1:]")),
        ("names of its own", ("[0, ids.shape[1]:]", "[0]")),
        ("tensor, no mask", ("result.output_ids\n", "result.output_ids[:, input_ids.shape[1]:]\n")),
        ("a generator of new tokens", ("[0, input_ids.shape[1]:]", "[0]")),
    ],
)
def test_a_wrong_output_of_another_shape_is_seen(shaped, name, change):
    made = bench(shaped(name, change), **SHAPES[name][1])
    result = losslessness.run_losslessness(made, [0, 1], 12, [CHAIN], lambda *step: None)
    assert result["modes"][0]["same"] == 0


@pytest.fixture
def three(variant):
    """The right tree with the entry points of THREE alone; `change` makes their source another."""

    def make(change=("", ""), loop=("", "")):
        root = variant()
        speculate = (root / "speculate.py").read_text()
        (root / "speculate.py").write_text(speculate.replace("stop_token_ids", "halting"))
        (root / "shape.py").write_text(HEAD + OTHERS.replace(*change))
        draft = (root / "draft.py").read_text()
        (root / "draft.py").write_text(draft.replace("\n\ndef features(", OWN_LOOP.replace(*loop), 1))
        return root

    return make


def tallies(made):
    result = losslessness.run_losslessness(made, [0, 1], 12, MODES, lambda *step: None)
    assert result["plain"]["same"] == 2
    return {tally["mode"]: tally for tally in result["modes"]}


def test_chain_tree_and_loop_that_are_named_run_each_in_its_own_way(three):
    found = tallies(bench(three(), **THREE))
    assert {mode: (tally["same"], tally["run"], tally["error"]) for mode, tally in found.items()} == {
        "chain": (2, 2, None),
        "tree-8": (2, 2, None),
        "loop": (2, 2, None),
    }
    assert found["tree-8"]["shapes"]["siblings"] > 0
    assert not any(tally["prompts"] for tally in found.values())


@pytest.mark.parametrize(
    ("mode", "change", "loop"),
    [
        ("tree-8", ("yield [token]", "yield [token + 1]"), ("", "")),
        ("tree-8", ("ids.shape[1]:", "ids.shape[1] + 1:"), ("", "")),
        ("loop", ("", ""), ("ids.shape[1]:", "ids.shape[1] + 1:")),
        ("chain", ("hole, n, width, stops, None", "hole, n + (width > 1), width, stops, None"), ("", "")),
    ],
)
def test_a_fault_of_one_named_entry_point_is_seen_in_its_mode_alone(three, mode, change, loop):
    found = tallies(bench(three(change, loop), **THREE))
    assert {name for name, tally in found.items() if tally["same"] < 2} == {mode}


@pytest.mark.parametrize("results", [["whole", "draft:TinyDraft.speak=1:new"], ["shape:straight=whole"]])
def test_a_result_that_does_not_fit_fails_its_own_mode_and_the_others_are_measured(three, results):
    made = bench(three(), **{**THREE, "results": results})
    found = tallies(made)
    wrong = "tree-8" if "whole" in results else "loop"
    assert {name for name, tally in found.items() if tally["error"]} == {wrong}
    assert found["chain"]["same"] == 2
    error = found[wrong]["error"]
    assert (error["code"], error["at"]) == ("CF917", None)
    planted = run_faults(made, [m for m in MODES if m.name == wrong], lambda *step: None, only=["wrong-acceptance"])
    assert [fault["caught"] for fault in planted["faults"]] == [False]
    verdict, findings = judge_code(CodeData(modes=list(found.values()), subject=subject(made)))
    assert verdict.status == "failed"
    (finding,) = [finding for finding in findings if finding.code == "CF917"]
    assert ("branching" if wrong == "tree-8" else "speak") in finding.message
    assert finding.message.startswith(f"{'speak' if wrong == 'loop' else wrong}: the result of ")


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"results": ["shape:straihgt=whole"]}, ["no entry point that is run", "did you mean shape:straight"]),
        ({"arguments": [*THREE["arguments"], "shape:straight.leaves=1"]}, ["no parameter leaves in shape:straight"]),
        ({"entries": ["loop=shape:straight"]}, ["the loop is a method of the draft class"]),
        ({"entries": ["shape:straight", "chain=shape:branching"]}, ["shape:straight is the chain already"]),
        ({"entries": ["loop=draft:crop"]}, ["draft:crop has no known parameter for"]),
    ],
)
def test_what_is_said_of_the_wrong_entry_point_is_refused(three, results, words):
    said = {**THREE, **results}
    with pytest.raises(TreeError) as caught:
        load_tree(three(), parse_choices(said["entries"], said["arguments"], said["results"]))
    assert caught.value.code == "CF907"
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_how_parameters_were_read_is_reported(shaped):
    made = bench(shaped("names of its own"), **SHAPES["names of its own"][1])
    (entry,) = entry_points(made)
    assert entry["roles"]["target"] == "big"
    assert entry["literals"] == {"config": None}
    text = entry_statement({"entry_points": [entry], "chain": "shape.go", "draft_class": "TinyDraft"}).text
    assert "go: named with --entry" in text
    assert "big is target" in text
    assert "config = null" in text
    assert "ids in answer, ids without the prompt" in text
    assert entry["result"] == {"field": "answer", "only_new": True}


OPTIONS = SHAPES["names of its own"][1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["name it: --entry speculate:", "--argument halting=stop_token_ids"]),
        ({"entries": ["shap:go"]}, ["no module shap", "did you mean shape?"]),
        ({"entries": ["shape:gone"]}, ["shape has no gone", "did you mean go?"]),
        ({"entries": ["shape:go"]}, ["has no known parameter for", "input_ids", "--argument big="]),
        ({"entries": ["tree=shape:go"], "arguments": OPTIONS["arguments"]}, ["tree budget", "NAME=tree_budget"]),
        (
            {"entries": ["shape:go"], "arguments": OPTIONS["arguments"][:-1]},
            ["needs config", "--argument config=VALUE"],
        ),
        ({"entries": ["shape:go"], "arguments": [*OPTIONS["arguments"], "widht=1"]}, ["widht", "did you mean width?"]),
        ({"entries": ["draft:TinyDraft.forward"]}, ["has no known parameter for"]),
        ({"entries": ["draft:TinyDraft"]}, ["is no function"]),
    ],
)
def test_what_cannot_be_called_says_what_to_type(shaped, options, words):
    choices = parse_choices(options.get("entries", ()), options.get("arguments", ()))
    with pytest.raises(TreeError) as caught:
        load_tree(shaped("names of its own"), choices)
    assert caught.value.code == "CF907"
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize(
    ("entry", "argument", "results", "words"),
    [
        ("no colon", None, (), "write [chain=|tree=|loop=]module:function"),
        ("best=a:b", None, (), "'best' is no kind"),
        (None, "x", (), "write NAME=ROLE"),
        (None, "x=targte", (), "did you mean target?"),
        (None, None, ["ids:old"], "FIELD:new"),
        (None, None, [""], "FIELD:new"),
        (None, None, ["a:b="], "FIELD:new"),
        (None, None, ["go=ids"], "module:function="),
        (None, None, ["ids", "tokens:new"], "--result tokens:new: --result ids says already"),
        (None, None, ["a:b=ids", "ids", "a:b=:new"], "where the result of a:b holds ids"),
    ],
)
def test_options_that_cannot_be_read_are_refused(entry, argument, results, words):
    with pytest.raises(UsageError) as caught:
        parse_choices([entry] if entry else (), [argument] if argument else (), results)
    assert words in str(caught.value)


def test_the_page_lists_every_role():
    page = (TARGETS.parents[1] / "docs" / "entry-points.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE))
    assert {role.name: ", ".join(f"`{name}`" for name in role.spellings) for role in ROLES} == rows
    names = (*OUTPUT_FIELDS, *NEW_FIELDS)
    assert [name for name in names if f"`{name}`" not in page] == []


def test_a_model_beside_a_draft_is_the_target():
    assert roles_of(["model", "draft_model", "input_ids"])["target"] == "model"
    assert roles_of(["model", "target"]) == {"draft": "model", "target": "target"}


def test_positional_only_parameters_are_given_by_place():
    def generate(target, draft, extra=3, /, *, input_ids): ...

    signature = inspect.signature(generate)
    args, named = call_arguments(signature, map_parameters(signature), {"target": 1, "draft": 2, "input_ids": 9})
    assert (args, named) == ([1, 2], {"input_ids": 9})


def returning(result: str | None) -> Entry:
    choices = parse_choices(results=[] if result is None else [result])
    return Entry("go", "shape", print, CallMap(), result=choices.result_of("shape:go"))


@dataclass
class Text:
    output_ids: list[int]
    stats: dict[str, list[int]]


@dataclass
class Sequences(ModelOutput):
    sequences: torch.Tensor | None = None


IDS = [*PROMPT, 8, 9]


@pytest.mark.parametrize(
    ("result", "place", "lengths"),
    [
        (torch.tensor([IDS]), None, None),
        (torch.tensor(IDS), None, None),
        (IDS, None, None),
        ([IDS], None, None),
        ((torch.tensor([IDS]), SimpleNamespace(accept_lengths=[1, 1])), None, [1, 1]),
        ({"output_ids": IDS, "acceptance_lengths": torch.tensor([2])}, None, [2]),
        (SimpleNamespace(output_ids=torch.tensor([IDS]), acceptance_lengths=[1.0, 1.0]), None, [1, 1]),
        (Text(IDS, {"accepted_lengths": [2]}), None, [2]),
        (Sequences(sequences=torch.tensor([IDS])), None, None),
        ({"new_tokens": [8, 9]}, None, None),
        ({"text": "x", "mine": IDS}, "mine", None),
        ((0.5, IDS), "1", None),
        ([8, 9], ":new", None),
        ({"a": [8, 9], "b": 1}, "shape:go=a:new", None),
        (IDS, "shape:other=a:new", None),
    ],
)
def test_a_result_is_read_in_every_published_shape(result, place, lengths):
    output = read_output(result, PROMPT, returning(place))
    assert (output.tokens, output.kept, output.lengths) == ([8, 9], True, lengths)


@pytest.mark.parametrize(
    ("fields", "unread", "counts"),
    [
        ({"acceptance_lengths": [1.75, 3.25, 1.75, 1.0]}, "list of 4: 1.75, 3.25, 1.75, …", {}),
        ({"acceptance_lengths": 1.75}, "1.75", {}),
        ({"acceptance_lengths": "three"}, "three", {}),
        ({"acceptance_lengths": [[2, 1]]}, None, {}),
        ({"acceptance_lengths": None}, None, {}),
        (
            {"num_output_tokens": torch.tensor(2), "decode_rounds": 1},
            None,
            {"num_output_tokens": 2, "decode_rounds": 1},
        ),
        ({"stats": {"num_input_tokens": 3}}, None, {"num_input_tokens": 3}),
        ({"num_output_tokens": [2], "num_rounds": True, "num_new_tokens": "2"}, None, {}),
    ],
)
def test_claims_that_come_with_a_result_are_read_by_name(fields, unread, counts):
    output = read_output({"output_ids": IDS, **fields}, PROMPT, returning(None))
    assert output.counts == counts
    assert output.unread == (None if unread is None else ("acceptance_lengths", unread))


@pytest.mark.parametrize("result", [torch.tensor([[8, 9, 4, 4]]), [5, 6, 8, 9]])
def test_a_lost_prompt_is_never_taken_for_new_tokens(result):
    assert not read_output(result, PROMPT, returning(None)).kept


@pytest.mark.parametrize(
    ("result", "place", "words"),
    [
        (None, None, ["None", "expected a tensor"]),
        ({"answer": IDS, "score": 0.5}, None, ["answer: list of 5", "score: float", "--result shape:go=answer"]),
        (SimpleNamespace(output_ids=torch.zeros(2, 3).long()), None, ["tensor (2, 3) int64"]),
        (torch.zeros(1, 5), None, ["tensor (1, 5) float32"]),
        (torch.ones(1, 5).bool(), None, ["bool"]),
        ([1.0, 2.0], None, ["list of 2"]),
        ({"answer": IDS}, "anwser", ["no 'anwser'", "did you mean answer?"]),
        ({"answer": "text"}, "answer", ["field answer is str"]),
    ],
)
def test_a_result_that_does_not_fit_says_what_exists(result, place, words):
    with pytest.raises(TreeError) as caught:
        read_output(result, PROMPT, returning(place))
    assert caught.value.code == "CF917"
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_generator_of_something_else_is_refused():
    with pytest.raises(TreeError, match="it yields str"):
        collected((word for word in ("a", "b")), returning(None))
