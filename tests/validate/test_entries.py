"""Every published shape of an entry point is found and called; what does not fit is refused by name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from transformers.utils import ModelOutput

from compatfix.errors import UsageError
from compatfix.validate import losslessness
from compatfix.validate.bench import CHAIN, PLAIN, Bench, build_bench
from compatfix.validate.entries import TreeError
from compatfix.validate.entry_statement import entry_statement
from compatfix.validate.job import entry_points
from compatfix.validate.load_tree import load_tree
from compatfix.validate.results import collected, read_output
from compatfix.validate.roles import call_arguments, map_parameters, parse_choices, roles_of
from tests.validate.conftest import TARGETS

pytestmark = pytest.mark.usefixtures("clean_modules")
PROMPT = [5, 6, 7]
NOTHING = parse_choices((), (), None)
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
            "result": "answer:new",
        },
        "go",
    ),
}


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


def test_how_parameters_were_read_is_reported(shaped):
    made = bench(shaped("names of its own"), **SHAPES["names of its own"][1])
    (entry,) = entry_points(made)
    assert entry["roles"]["target"] == "big"
    assert entry["literals"] == {"config": None}
    text = entry_statement({"entry_points": [entry], "chain": "shape.go", "draft_class": "TinyDraft"}).text
    assert "go: named with --entry" in text
    assert "big is target" in text
    assert "config = null" in text


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
    choices = parse_choices(options.get("entries", ()), options.get("arguments", ()), None)
    with pytest.raises(TreeError) as caught:
        load_tree(shaped("names of its own"), choices)
    assert caught.value.code == "CF907"
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize(
    ("entry", "argument", "result", "words"),
    [
        ("no colon", None, None, "write [chain=|tree=|loop=]module:function"),
        ("best=a:b", None, None, "'best' is no kind"),
        (None, "x", None, "write NAME=ROLE"),
        (None, "x=targte", None, "did you mean target?"),
        (None, None, "ids:old", "FIELD:new"),
    ],
)
def test_options_that_cannot_be_read_are_refused(entry, argument, result, words):
    with pytest.raises(UsageError) as caught:
        parse_choices([entry] if entry else (), [argument] if argument else (), result)
    assert words in str(caught.value)


def test_a_model_beside_a_draft_is_the_target():
    assert roles_of(["model", "draft_model", "input_ids"])["target"] == "model"
    assert roles_of(["model", "target"]) == {"draft": "model", "target": "target"}


def test_positional_only_parameters_are_given_by_place():
    def generate(target, draft, extra=3, /, *, input_ids): ...

    signature = inspect.signature(generate)
    args, named = call_arguments(signature, map_parameters(signature), {"target": 1, "draft": 2, "input_ids": 9})
    assert (args, named) == ([1, 2], {"input_ids": 9})


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
    ],
)
def test_a_result_is_read_in_every_published_shape(result, place, lengths):
    output = read_output(result, PROMPT, parse_choices((), (), place))
    assert (output.tokens, output.kept, output.lengths) == ([8, 9], True, lengths)


@pytest.mark.parametrize("result", [torch.tensor([[8, 9, 4, 4]]), [5, 6, 8, 9]])
def test_a_lost_prompt_is_never_taken_for_new_tokens(result):
    assert not read_output(result, PROMPT, NOTHING).kept


@pytest.mark.parametrize(
    ("result", "place", "words"),
    [
        (None, None, ["None", "expected a tensor"]),
        ({"answer": IDS, "score": 0.5}, None, ["answer: list of 5", "score: float", "--result answer"]),
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
        read_output(result, PROMPT, parse_choices((), (), place))
    assert caught.value.code == "CF917"
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_generator_of_something_else_is_refused():
    with pytest.raises(TreeError, match="it yields str"):
        collected(word for word in ("a", "b"))
