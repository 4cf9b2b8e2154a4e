"""Whatever texts a report holds, every file of it is valid and shows them."""

import json
import xml.etree.ElementTree as ET

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compatfix.model import SCOPES, Answer, Finding, Location, Report, ScopeVerdict, Statement, Verdict
from compatfix.report.baseline import with_baseline
from compatfix.report.compare import compare
from compatfix.report.comparison import comparison_text
from compatfix.report.files import texts_of, write_report
from compatfix.report.fingerprints import entries_of
from compatfix.report.github import commands
from compatfix.report.reading import load_report

from .page import read

# Lone surrogates and control characters included.
TEXT = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["</style>", "]]>", "\x00", "\ud800", "|", "`", "\r\n", "%::"]
)


@st.composite
def reports(draw):
    text = lambda: draw(TEXT)  # noqa: E731
    location = draw(st.none() | st.builds(Location, TEXT, st.none() | st.integers(1, 9), st.none() | st.integers(1, 9)))
    finding = Finding(text(), "error", "read", text(), location, draw(st.none() | TEXT), {"source": text()})
    row = {"mode": text(), "accepted_length": 2.5, "forwards_per_token": 0.4, "error": draw(st.none() | TEXT)}
    row |= {"per_position": [0.5, 0.25], "histogram": {"1": 2, "3": 1}, "stage_seconds": {text(): 1.0}, "rounds": 3}
    row |= {"stage_shares": row["stage_seconds"]}
    return Report(
        "gate",
        {"tree": text(), text(): text()},
        (Statement(text(), text(), text(), "assumed"),),
        (Answer(text(), text(), text(), draw(st.sampled_from([True, False, None])), {text(): draw(st.floats())}),),
        (finding, finding),
        Verdict(tuple(ScopeVerdict(scope, "undecided", text(), draw(st.none() | TEXT)) for scope in SCOPES)),
        {
            "benchmark": {"label": text(), "rows": [row]},
            "ladder": [{"title": text(), "status": text(), "message": text(), "place": None}],
            "cache": {"class_name": text(), "layers": [text(), "full"], "states": None, "read_by_draft": [1]},
        },
        draw(st.none() | TEXT),
        text(),
        "2026-01-02T03:04:05",
    )


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(report=reports())
def test_every_file_is_valid(report):
    texts = texts_of(report)
    page = read(texts["report.html"])
    assert len(page.all("ul", class_="scopes")[0].all("li")) == len(SCOPES)
    assert len(page.all("ul", class_="findings")[0].all("li")) == 2
    assert not page.all("script")
    root = ET.fromstring(texts["junit.xml"].encode("utf-8"))
    assert len(root.findall("testsuite[@name='scopes']/testcase")) == len(SCOPES)
    json.loads(texts["codequality.json"])
    for line in commands(report):
        assert line.startswith("::error ") and len(line.splitlines()) == 1
    for form in ("text", "md", "json"):
        comparison_text(compare(report, report), form)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(report=reports())
def test_a_report_comes_back_and_knows_itself(report, tmp_path_factory):
    back = load_report(write_report(report, tmp_path_factory.mktemp("reports")))
    assert (back.subject, back.findings, back.verdict) == (report.subject, report.findings, report.verdict)
    assert entries_of(back.findings) == entries_of(report.findings)
    assert not compare(report, back).worse
    known = with_baseline(back, _baseline(report), "b")
    assert all(finding.known for finding in known.findings) and known.sections["baseline"]["gone"] == []


def _baseline(report):
    from compatfix.report.baseline import Baseline

    return Baseline(entries_of(report.findings))
