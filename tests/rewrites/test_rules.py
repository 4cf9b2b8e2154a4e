"""Every case in every rule is a test: first what must stay, then what must change, then what is reported."""

from __future__ import annotations

import ast
import re

import pytest

from compatfix.codes import CODES
from compatfix.rewrites import all_rules, page
from compatfix.rewrites.engine import Result, rewrite
from compatfix.rewrites.rule import Case, Rule

IMPORT = re.compile(r"^from compatfix_runtime import .*\n", re.MULTILINE)


def run(rule: type[Rule], source: str) -> tuple[str, Result]:
    result = rewrite({"snippet.py": source.encode()}, [rule], {rule.code})
    after = result.changes[0].after.decode() if result.changes else source
    return after, result


def table(kind: str) -> list[object]:
    rows = []
    for rule in all_rules():
        for number, entry in enumerate(getattr(rule, kind)):
            case = entry if isinstance(entry, Case) else Case(entry)
            rows.append(pytest.param(rule, case, id=f"{rule.code}-{number}-{case.before.splitlines()[0][:50]}"))
    return rows


@pytest.mark.parametrize(("rule", "case"), table("VALID"))
def test_stays_as_it_is(rule: type[Rule], case: Case) -> None:
    source = f"{case.given}{case.before}\n"
    after, result = run(rule, source)
    assert after == source
    assert not [f for f in result.unfixed if f.location and f.location.line and f.code == rule.code]


@pytest.mark.parametrize(("rule", "case"), table("INVALID"))
def test_becomes(rule: type[Rule], case: Case) -> None:
    after, result = run(rule, f"{case.given}{case.before}\n")
    assert case.after is not None
    body = IMPORT.sub("", after)
    # Imports that the fix left without a use are gone from the code that comes first.
    assert body.endswith(f"{case.after}\n"), after
    head = body.removesuffix(f"{case.after}\n")
    lines = IMPORT.sub("", case.given).splitlines()
    assert [line for line in lines if line not in head.splitlines() and "import" not in line] == []
    assert result.unfixed == []
    assert {fix.code for fix in result.changes[0].fixes} == {rule.code}
    ast.parse(after)


@pytest.mark.parametrize(("rule", "case"), table("INVALID"))
def test_twice_is_once(rule: type[Rule], case: Case) -> None:
    once, _ = run(rule, f"{case.given}{case.before}\n")
    twice, again = run(rule, once)
    assert twice == once
    assert again.changes == []


@pytest.mark.parametrize(("rule", "case"), table("UNFIXABLE"))
def test_is_reported_with_a_reason(rule: type[Rule], case: Case) -> None:
    source = f"{case.given}{case.before}\n"
    after, result = run(rule, source)
    assert after == source
    assert len(result.unfixed) == 1
    finding = result.unfixed[0]
    assert finding.code == rule.code
    assert case.reason is not None and case.reason in finding.message


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_rule_is_complete(rule: type[Rule]) -> None:
    assert CODES[rule.code].name == rule.name
    assert rule.VALID and (rule.INVALID or rule.UNFIXABLE)
    for section in ("What it does", "Why it breaks", "Example", "Use instead", "Fix safety"):
        assert f"## {section}" in rule.page()
    for case in (*rule.INVALID, *rule.UNFIXABLE):
        assert any(word in f"{case.given}{case.before}".encode() for word in rule.trigger), case


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page(code: str) -> None:
    text = page(code)
    assert text.startswith(f"# {code} {CODES[code].name}")
    assert text.count("## ") >= 3
