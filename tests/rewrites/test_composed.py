"""Properties over programs composed of the rules' own cases: fixing twice is fixing once, and the rest stays."""

from __future__ import annotations

import ast
import textwrap

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compatfix.rewrites import all_rules
from compatfix.rewrites.engine import rewrite
from compatfix.rewrites.rule import Case
from compatfix.rewrites.rules import RULES

EVERY = {rule.code for rule in RULES}
SNIPPETS = [
    f"{case.given}{case.before}\n"
    for rule in all_rules()
    for entry in (*rule.VALID, *rule.INVALID, *rule.UNFIXABLE)
    for case in [entry if isinstance(entry, Case) else Case(entry)]
]


@st.composite
def programs(draw: st.DrawFn) -> bytes:
    """Snippets one after the other, some inside functions, in any line ending, with a byte order mark or not."""
    parts = []
    for number, snippet in enumerate(draw(st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=4))):
        if draw(st.booleans()):
            parts.append(f"def function_{number}():  # é{number}é\n{textwrap.indent(snippet, '    ')}\n")
        else:
            parts.append(snippet)
    source = "\n".join(parts)
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    bom = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return bom + source.replace("\n", newline).encode()


def fix(data: bytes) -> bytes:
    result = rewrite({"a.py": data}, RULES, EVERY)
    assert not [f for f in result.unfixed if f.code == "CF908"], result.unfixed
    return result.changes[0].after if result.changes else data


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_fixing_twice_is_fixing_once(data: bytes) -> None:
    once = fix(data)
    ast.parse(once)
    assert fix(once) == once


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_form_and_comments_stay(data: bytes) -> None:
    once = fix(data)
    assert once.startswith(b"\xef\xbb\xbf") == data.startswith(b"\xef\xbb\xbf")
    assert (b"\r\n" in once) == (b"\r\n" in data)
    assert once.count("é".encode()) == data.count("é".encode())


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.permutations(sorted(EVERY)))
def test_rules_one_by_one_reach_a_program_that_all_leave_alone(data: bytes, order: list[str]) -> None:
    for code in order:
        result = rewrite({"a.py": data}, RULES, {code})
        data = result.changes[0].after if result.changes else data
    assert fix(fix(data)) == fix(data)
