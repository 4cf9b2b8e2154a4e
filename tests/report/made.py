"""Reports for the renderers: the shipped example, one of real weights, and one in which every text is hostile."""

import json
from dataclasses import replace
from pathlib import Path

from compatfix.model import SCOPES, Answer, Finding, Location, Report, ScopeVerdict, Statement, Verdict
from compatfix.serial import from_plain
from compatfix.validate.measured import summarise
from tests.validate.made import timed_raw

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "reports" / "example" / "report.json"
HOSTILE = "<script>alert(\"1\")</script> & 'x' \x1b[31m \udc80 \u202e ]]> \ufeff \x00 </title> `a` | b\r\nc % :: ,"


def example() -> Report:
    return from_plain(Report, json.loads(EXAMPLE.read_text(encoding="utf-8")))


def verdict(**statuses) -> Verdict:
    return Verdict(tuple(ScopeVerdict(scope, statuses.get(scope, "unmeasured"), f"why {scope}") for scope in SCOPES))


def with_cache(report: Report) -> Report:
    kinds = (["linear"] * 3 + ["full"]) * 5 + ["sliding", "new kind"]
    cache = {"class_name": "DynamicCache", "layers": kinds, "states": None, "read_by_draft": [1, 2, 3, 19]}
    return replace(report, sections={**report.sections, "cache": cache})


def of_weights() -> Report:
    """A checkpoint on which one token is rounded and one is wrong."""

    def row(mode, lengths, differences=(), **more):
        histogram = {str(n): lengths.count(n) for n in sorted(set(lengths))}
        positions = [sum(n > k for n in lengths) / len(lengths) for k in range(1, max(lengths, default=1))]
        return {
            "mode": mode,
            "run": 4,
            "same": 4 - len(differences),
            "differences": list(differences),
            "error": None,
            "accepted_length": sum(lengths) / len(lengths) if lengths else None,
            "forwards_per_token": 0.5,
            "histogram": histogram,
            "per_position": positions,
            "stage_seconds": {"draft": 1.0, "build": 0.5, "build_heap": 0.25, "verify": 2.5},
            **more,
        }

    def wrong(prompt, behind, kind):
        place = {"prompt": prompt, "index": 3, "got": 7, "expected": 9}
        return {**place, "margin": behind, "behind": behind, "kind": kind}

    modes = [
        row("plain", []),
        row("chain", [1, 1, 2, 4], [wrong(0, 0.125, "rounding"), wrong(2, 1.5, "corruption")]),
        row("tree-16", [2, 4], [{**wrong(1, None, "corruption"), "got": None}]),
    ]
    section = {"device": "cpu", "dtype": "bfloat16", "prompts": 4, "tokens": 16, "noise": 0.25, "modes": modes}
    return Report(
        "gate", {"tree": "t"}, verdict=verdict(code="passed", weights="failed"), sections={"weights": section}
    )


def of_timing(chain: float = 1.5, **changes) -> Report:
    """A checkpoint whose tree is twice as fast as plain decoding on 12 prompts."""
    section = summarise(timed_raw({"chain": chain, "tree-16": 2.0}, **changes), 0)
    return Report("gate", {"tree": "t"}, verdict=verdict(code="passed"), sections={"measured": section})


def hostile() -> Report:
    row = {
        "mode": HOSTILE,
        "accepted_length": float("inf"),
        "forwards_per_token": float("nan"),
        "per_position": [0.5],
        "histogram": {"1": 2, "2": 2},
        "stage_seconds": {HOSTILE: 1.0},
        "stage_shares": {HOSTILE: 1.0},
        "error": None,
        "rounds": 4,
    }
    sections = {
        "ladder": [{"title": HOSTILE, "status": HOSTILE, "message": HOSTILE, "place": {"file": HOSTILE, "line": 1}}],
        "benchmark": {"label": HOSTILE, "rows": [row, {**row, "mode": "chain", "accepted_length": 2.0}]},
        "cache": {"class_name": HOSTILE, "layers": [HOSTILE, "full"], "states": None, "read_by_draft": [0, 99]},
    }
    findings = (
        Finding("CF901", "error", "measured", HOSTILE, Location(HOSTILE, 3, 1), HOSTILE),
        Finding("CF002", "warning", "assumed", HOSTILE),
    )
    return Report(
        kind="gate",
        subject={"tree": HOSTILE, HOSTILE: HOSTILE},
        statements=(Statement(HOSTILE, "k", HOSTILE, "read"),),
        answers=(Answer("p", HOSTILE, HOSTILE, False, {HOSTILE: float("nan")}),),
        findings=findings,
        verdict=Verdict(tuple(ScopeVerdict(scope, "failed", HOSTILE, HOSTILE) for scope in SCOPES)),
        sections=sections,
        next_step=HOSTILE,
        version=HOSTILE,
        started=HOSTILE,
    )
