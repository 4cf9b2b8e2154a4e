"""A tree's own functions under sampling: followed, held against exact chances, and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compatfix.model import Report
from compatfix.report.tables import tables
from compatfix.validate import job
from compatfix.validate.bench import build_bench
from compatfix.validate.judge import CodeData, judge_code
from compatfix.validate.judge_sampling import (
    ALARM,
    LIMIT,
    MODES,
    open_sampling,
    praise_sampling,
    status,
    wrong_sampling,
)
from compatfix.validate.options import ValidateRequest
from compatfix.validate.plan import validate
from compatfix.validate.sampled import modes_of, run_sampling
from compatfix.validate.sampler import Sampler
from tests.validate.conftest import TARGETS

pytestmark = pytest.mark.usefixtures("clean_modules")
TARGET, DRAFT = str(TARGETS / "qwen3-8b"), str(TARGETS / "qwen3-8b-dflash")
WAY = Sampler(0.8, top_p=0.9)
AT = str(WAY)

PICK = """
def pick(logits, temperature, top_p):
    chances = torch.softmax(logits / temperature, dim=-1)
    mass, order = chances.sort(dim=-1, descending=True)
    mass[mass.cumsum(-1) - mass >= top_p] = 0
    return order.gather(-1, torch.multinomial(mass, 1))[:, 0].tolist()


def draft_tree("""
# The stand-in tree decodes greedily, whatever temperature it is given; these edits make it sample.
SAMPLES = (
    ("temperature=0.0\n", "temperature=0.0, top_p=1.0\n"),
    ("temperature=0.0, tree_budget=16", "temperature=0.0, top_p=1.0, tree_budget=16"),
    ("stop_token_ids, None)", "stop_token_ids, None, temperature, top_p)"),
    ("stop_token_ids, tree_budget)", "stop_token_ids, tree_budget, temperature, top_p)"),
    ("limit, block_size, stops, budget):", "limit, block_size, stops, budget, temperature, top_p):"),
    ("int(output.logits[0, -1].argmax())", "pick(output.logits[0, -1:], temperature, top_p)[0]"),
    ("said = output.logits[0].argmax(-1).tolist()", "said = pick(output.logits[0], temperature, top_p)"),
    ("\ndef draft_tree(", PICK),
)
# The rejection form, for the chain: what is drawn from the draft is weighed, and a token is said in its place or not.
WEIGHED = """
def weighed(logits, ids, q, temperature):
    p = torch.softmax(logits / temperature, dim=-1)
    said = []
    for node in range(len(ids)):
        rest = p[node]
        if node + 1 < len(ids):
            token = ids[node + 1]
            if torch.rand(()) < p[node, token] / q[node, token]:
                said.append(token)
                continue
            rest = (p[node] - q[node]).clamp_min(0)
        said.append(int(torch.multinomial(rest, 1)))
    return said


def draft_tree("""
REJECTS = (
    ("said = pick(output.logits[0], temperature, top_p)", "said = weighed(output.logits[0], ids, q, temperature)"),
    (
        "ranked = target.get_output_embeddings()(hidden[0, 1:]).topk(2, dim=-1).indices.tolist()",
        "q = torch.softmax(target.get_output_embeddings()(hidden[0, 1:]) / temperature, dim=-1)\n"
        "            ranked = torch.multinomial(q, 2, replacement=True).tolist()",
    ),
    ("\ndef draft_tree(", WEIGHED),
)
AGAIN = """path = walk(ids, parents, said)
        for _ in range(4):
            if path[-1] in parents:
                said[path[-1]] = pick(output.logits[0, path[-1:]], temperature, top_p)[0]
                path = walk(ids, parents, said)
"""
GREEDY = """path = walk(ids, parents, said)
        if path[-1] in parents:
            said[path[-1]] = int(output.logits[0, path[-1]].argmax())
"""
FAULTS = {
    "path not kept": ("        keep(cache, start, path)\n", "        crop(cache, start + len(path))\n"),
    "draws again": ("path = walk(ids, parents, said)\n", AGAIN),
    "greedy after a rejection": ("path = walk(ids, parents, said)\n", GREEDY),
    "no top-p": ("- mass >= top_p", "- mass >= 1.0"),
    "raises": ("said = pick(", "raise IndexError('out of tokens')\n        said = pick("),
}


@pytest.fixture
def sampling_tree(variant):
    def make(fault: str | None = None, edits: tuple[tuple[str, str], ...] = ()) -> Path:
        tree = variant()
        source = (tree / "speculate.py").read_text()
        for before, after in (*SAMPLES, *edits, *([FAULTS[fault]] if fault else [])):
            assert before in source, before
            source = source.replace(before, after)
        (tree / "speculate.py").write_text(source)
        return tree

    return make


def rows_of(tree: Path, texts: int, kinds: tuple[str, ...] = ("chain", "tree"), way: Sampler = WAY) -> list[dict]:
    bench = build_bench({"tree": str(tree), "target": TARGET, "draft": DRAFT, "seed": 0})
    modes = [mode for mode in modes_of(bench, [16, 32]) if mode.kind in kinds]
    return run_sampling(bench, modes, way, texts, ALARM / MODES, lambda *step: None)["modes"]


def test_a_tree_that_samples_rightly_is_not_flagged_and_is_followed(sampling_tree):
    rows = rows_of(sampling_tree(), 16, ("plain", "chain", "tree"))
    assert [row["mode"] for row in rows] == ["plain", "chain", "tree-16"]
    for row in rows:
        assert row["error"] is None and row["lost"] == 0
        assert row["texts"] == 16
        assert 240 <= row["tokens"] <= 256 == row["tokens"] + row["on_the_edge"]
        assert row["p"] > ALARM / MODES
        assert max(row["detectable"].values()) < 0.4
    for row in rows[1:]:
        counts = row["evidence"]["counts"]
        assert min(counts["behind accepted tokens"], counts["after a rejection"]) >= 25
        assert counts["after full acceptance"] >= 2


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "raises"])
def test_a_tree_that_samples_wrongly_is_told_different(sampling_tree, fault):
    (row,) = rows_of(sampling_tree(fault), 64, ("tree",))
    assert status(row) == "different"
    assert row["texts"] <= 64
    (finding,) = wrong_sampling({"sampler": AT, "modes": [row]})
    assert (finding.code, finding.level) == ("CF702", "error")
    assert finding.message.startswith(f"tree-16 at {AT} does not keep the target's distribution: ")


REJECTION_FAULTS = {
    "correction from the target": ("            rest = (p[node] - q[node]).clamp_min(0)\n", ""),
    "always accepts": ("torch.rand(()) < ", "0 < "),
}


def test_a_tree_in_the_rejection_form_is_not_flagged(sampling_tree):
    (row,) = rows_of(sampling_tree(edits=REJECTS), 16, ("chain",), Sampler(0.8))
    assert row["error"] is None and row["lost"] == 0
    assert row["p"] > ALARM / MODES
    assert row["evidence"]["counts"]["behind accepted tokens"] >= 60


@pytest.mark.parametrize("fault", REJECTION_FAULTS)
def test_a_tree_in_the_rejection_form_with_a_fault_is_told_different(sampling_tree, fault):
    (row,) = rows_of(sampling_tree(edits=(*REJECTS, REJECTION_FAULTS[fault])), 96, ("chain",), Sampler(0.8))
    assert status(row) == "different", row


def test_a_tree_that_ignores_the_temperature_is_told_different_after_one_look(variant):
    (row,) = rows_of(variant(), 64, ("chain",), way=Sampler(0.8))
    assert status(row) == "different"
    assert row["texts"] == 16


def test_a_function_that_cannot_be_asked_says_so(variant):
    rows = rows_of(variant(), 8)
    assert [(row["lacks"], row["texts"], status(row)) for row in rows] == [("top_p", 0, "undecided")] * 2
    finding = open_sampling({"sampler": AT, "modes": rows})[0]
    assert "chain_generate takes no top_p" in finding.message
    assert finding.fix == "leave --top-p out"


def test_an_exception_while_sampling_has_its_place(sampling_tree):
    (row,) = rows_of(sampling_tree("raises"), 8, ("chain",))
    assert status(row) == "raised"
    (finding,) = wrong_sampling({"sampler": AT, "modes": [row]})
    assert finding.code == "CF910"
    assert finding.location.path == "speculate.py"
    assert "out of tokens" in finding.message


def test_the_task_answers_in_json(sampling_tree):
    import json

    args = {"task": "sampling", "tree": str(sampling_tree()), "target": TARGET, "draft": DRAFT, "seed": 0}
    args |= {"budgets": [16], "share": 1, "shares": 2, "texts": 2, "temperature": 0.8, "top_p": 0.9, "top_k": 0}
    answer = job.run(args, lambda *step: None)
    assert answer["error"] is None
    result = json.loads(json.dumps(answer["result"]))
    assert result["sampler"] == AT
    assert [row["mode"] for row in result["modes"]] == ["chain"]
    assert "would show" in open_sampling(result)[0].message or "are needed" in open_sampling(result)[0].message


def made(mode: str = "chain", **changes: Any) -> dict[str, Any]:
    counts = {"behind the prompt": 96, "behind accepted tokens": 700, "after a rejection": 740}
    evidence = {"situation": "anywhere", "way": "likelihood", "observed": [9, 1], "expected": [8.5, 1.5]}
    row = {"mode": mode, "function": "f", "planned": 96, "texts": 96, "tokens": 1536, "on_the_edge": 0, "lost": 0}
    row |= {"lacks": None, "error": None, "p": 0.4, "evidence": {**evidence, "counts": counts}}
    return {**row, "detectable": {"likeliest": 0.08, "proposed": 0.06}, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"detectable": {"likeliest": 0.14}},
            "1536 tokens would show a total variation of 0.14, not of 0.1 (--samples)",
        ),
        ({"lost": 2}, "what was committed could not be followed in 2 rounds"),
        ({"texts": 3, "tokens": 0, "evidence": None, "p": None}, "3 of 96 texts were sampled"),
        (
            {"evidence": {**made()["evidence"], "counts": {"behind accepted tokens": 12, "after a rejection": 99}}},
            "only 12 tokens behind accepted tokens, 50 are needed (--samples)",
        ),
        ({"lacks": "temperature"}, "f takes no temperature"),
    ],
)
def test_too_little_is_undecided(changes, words):
    section = {"sampler": AT, "modes": [made(**changes)]}
    verdict, findings = judge_code(CodeData(sampling=section))
    assert verdict.status == "undecided"
    assert any(f.code == "CF903" and f"chain at {AT}: {words}" in f.message for f in findings)


def test_enough_that_agrees_is_praised_with_its_numbers():
    section = {"sampler": AT, "modes": [made("plain"), made(), made("loop", tokens=1500)]}
    assert not open_sampling(section) and not wrong_sampling(section)
    assert praise_sampling(section) == (
        f"at {AT} the target's distribution is kept: block size 1, chain, f on 1500 tokens each (a total variation of "
        "0.08 would have been seen in 9 of 10 runs, false alarms at most 0.0001)"
    )


def test_a_sampler_that_differs_without_any_draft_is_told_apart_from_verification():
    rows = [made("plain", p=0.0), made(p=0.0), made("tree-32")]
    plain, chain = (finding.message for finding in wrong_sampling({"sampler": AT, "modes": rows}))
    assert "how the tree samples" not in plain
    assert chain.endswith("so look at how the tree samples before how it verifies")
    (alone,) = wrong_sampling({"sampler": AT, "modes": [made("plain"), made(p=0.0)]})
    assert "block size 1" not in alone.message


class CannedWorker:
    """Answers each task as it is told, and remembers what it was asked."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows, self.asked = rows, []

    def wait_ready(self) -> None: ...

    def run(self, name, args, on_step=None, **limits):
        self.asked.append(args)
        result: dict[str, Any] = {"modes": []}
        if args["task"] == "sampling":
            result = {"sampler": AT, "modes": self.rows[args["share"] :: args["shares"]]}
        return {"task": args["task"], "subject": None, "result": result, "error": None, "seconds": 1, "cpu_seconds": 1}


def test_sampling_is_part_of_scope_code_only_when_asked_for():
    request = ValidateRequest(tree="tree", target=TARGET, draft=DRAFT, bf16=False)
    silent = CannedWorker([])
    outcome = validate(silent, request)
    assert "sampling" not in {args["task"] for args in silent.asked} | set(outcome.sections)

    worker = CannedWorker([made("plain"), made(p=1e-9), made("tree-32")])
    asked = ValidateRequest(tree="tree", target=TARGET, draft=DRAFT, bf16=False, temperature=0.8, top_p=0.9, samples=96)
    outcome = validate(worker, asked)
    tasks = [args for args in worker.asked if args["task"] == "sampling"]
    assert sorted(args["share"] for args in tasks) == [0, 1, 2, 3]
    assert {(args["temperature"], args["top_p"], args["top_k"], args["texts"]) for args in tasks} == {(0.8, 0.9, 0, 96)}
    assert outcome.scopes[0].status == "failed"
    assert outcome.scopes[0].reason.startswith(f"chain at {AT} does not keep the target's distribution")
    section = outcome.sections["sampling"]
    assert (section["alarm"], section["limit"]) == (ALARM, LIMIT)
    told = [(row["mode"], row["status"]) for row in section["modes"]]
    assert told == [("plain", "same"), ("chain", "different"), ("tree-32", "same")]
    (table,) = (t for t in tables(Report("gate", {}, sections={"sampling": section})) if "Sampling" in t.title)
    chain = next(row for row in table.rows if row[0] == "chain")
    assert chain[1:5] == ("different", "1536", "1e-09", "0.08")
