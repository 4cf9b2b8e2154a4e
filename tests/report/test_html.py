"""report.html as text: what a reader finds in it, that nothing escapes, and what it leaves out."""

import itertools
import json
import re
from dataclasses import replace

import pytest

from compatfix.model import Finding, Location, Report, Statement
from compatfix.report.files import texts_of, write_report
from compatfix.report.html import to_html

from .made import HOSTILE, example, hostile, of_timing, of_weights, verdict, with_cache
from .page import read, rows

REPORTS = {
    "example": example,
    "with cache": lambda: with_cache(example()),
    "weights": of_weights,
    "timing": of_timing,
    "hostile": hostile,
}


@pytest.fixture(params=REPORTS)
def page(request):
    return read(to_html(REPORTS[request.param]()))


def test_every_table_has_a_name_and_named_rows_and_columns(page):
    tables = page.all("table")
    assert tables
    for table in tables:
        assert [child.tag for child in table.children] == ["caption", "thead", "tbody"]
        assert table.all("caption")[0].text
        head, *body = table.all("tr")
        assert {cell.attributes["scope"] for cell in head.children} == {"col"}
        for row in body:
            assert row.children[0].tag == "th" and row.children[0].attributes["scope"] == "row"
            assert len(row.children) == len(head.children)
        scroller = table.parent
        assert scroller.attributes["tabindex"] == "0" and scroller.attributes["aria-label"]


def test_every_chart_has_a_name_and_its_numbers_in_a_table(page):
    for figure in page.all("figure"):
        drawing = figure.all("svg")
        assert len(drawing) == 1 and drawing[0].attributes["role"] == "img" and drawing[0].attributes["aria-label"]
        assert len(figure.all("table")) == 1
        assert figure.all("figcaption")[0].text


def test_headings_do_not_skip_a_level_and_anchors_lead_somewhere(page):
    levels = [int(e.tag[1]) for e in page.all() if re.fullmatch("h[1-6]", e.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [e.attributes["id"] for e in page.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    links = [e.attributes["href"] for e in page.all("a")]
    assert links and all(link.startswith("#") and link[1:] in ids for link in links)
    for element in page.all():
        if "aria-labelledby" in element.attributes:
            assert element.attributes["aria-labelledby"] in ids


def test_nothing_is_fetched_and_nothing_is_run(page):
    assert not page.all("script") and not page.all("iframe") and not page.all("img")
    for element in page.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on"), name
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                assert value.startswith("#") or value == "data:,", value
    assert "url(" not in page.all("style")[0].text and "@import" not in page.all("style")[0].text
    policy = page.all("meta", http_equiv="Content-Security-Policy")[0].attributes["content"]
    assert "default-src 'none'" in policy and "script" not in policy


def test_hostile_text_is_shown_and_is_nothing_but_text():
    text = to_html(hostile())
    text.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ufeff\ud800-\udfff]", text)
    page = read(text)
    shown = "<script>alert(\"1\")</script> & 'x' \\x1b[31m \\udc80 \\u202e ]]> \\ufeff \\x00 </title> `a` | b c % :: ,"
    assert page.all("h2", id="verdict-title")[0].text == "Verdict by scope"
    for place in ("scopes", "findings"):
        assert all(shown in item.text for item in page.all("ul", class_=place)[0].all("li")), place
    assert shown in page.all("title")[0].text
    assert shown in page.all("dl")[0].text
    assert page.all("p", class_="code")[0].text == shown


def test_the_verdict_stands_on_top_with_its_reasons_and_what_to_do():
    report = replace(example(), verdict=replace(example().verdict))
    page = read(to_html(report))
    assert page.all("p", class_="headline")[0].text == "✓ passed gate: green (code passed)"
    items = page.all("ul", class_="scopes")[0].all("li")
    assert [item.all("h3")[0].text for item in items] == [
        "code ✓ passed",
        "kernels – unmeasured",
        "weights – unmeasured",
        "draft – unmeasured",
        "speed – unmeasured",
    ]
    for item, scope in zip(items, report.verdict.scopes, strict=True):
        assert scope.reason in item.text and (scope.next_step or "") in item.text


@pytest.mark.parametrize(
    ("statuses", "required", "words"),
    [
        ({"code": "failed"}, ("code",), "✕ failed gate: red (scope code is failed)"),
        ({"code": "undecided"}, ("code",), "? undecided gate: red (scope code is undecided)"),
        ({"code": "passed"}, ("code", "weights"), "– unmeasured gate: red (scope weights is unmeasured)"),
        ({"code": "passed"}, (), "✓ passed gate: green (code passed)"),
    ],
)
def test_the_headline_is_of_the_scopes_that_had_to_pass(statuses, required, words):
    page = read(to_html(Report("gate", {}, verdict=verdict(**statuses), required=required)))
    assert page.all("p", class_="headline")[0].text == words


def test_findings_tell_level_code_place_evidence_and_fix_in_words():
    findings = (
        Finding("CF002", "warning", "assumed", "slow"),
        Finding("CF901", "error", "measured", "wrong token", Location("a.py", 3, 1), "mend it"),
        Finding("CF603", "error", "read", "old news", known=True),
    )
    page = read(to_html(Report("gate", {}, findings=findings, verdict=verdict(code="passed"))))
    assert [item.text for item in page.all("ul", class_="findings")[0].all("li")] == [
        "error CF901 a.py:3:1 measured wrong token fix: mend it",
        "error known CF603 read old news",
        "warning CF002 assumed slow",
    ]
    assert page.all("h2", id="findings-title")[0].text == "Findings (2 errors, 1 warning)"


def test_the_drawn_numbers_are_those_of_the_report():
    page = read(to_html(of_weights()))
    figures = {figure.attributes["id"]: figure for figure in page.all("figure")}
    assert set(figures) == {f"{name}-weights" for name in ("accepted", "positions", "lengths", "stages", "margins")}
    # chain committed 1, 1, 2 and 4 tokens in its rounds, the tree 2 and 4
    assert rows(figures["accepted-weights"].all("table")[0])[1:] == [
        ["chain", "2.00", "4", "0.50"],
        ["tree-16", "3.00", "2", "0.50"],
    ]
    assert rows(figures["positions-weights"].all("table")[0]) == [
        ["position", "chain", "tree-16"],
        ["1", "50%", "100%"],
        ["2", "25%", "50%"],
        ["3", "25%", "50%"],
    ]
    assert rows(figures["lengths-weights"].all("table")[0])[1:] == [
        ["1", "2", "0"],
        ["2", "1", "1"],
        ["3", "0", "0"],
        ["4", "1", "1"],
    ]
    # the heap is a part of build: 1 : 0.5 : 2.5
    assert [row[:2] for row in rows(figures["stages-weights"].all("table")[0])[1:]] == [
        ["draft", "25%"],
        ["build", "12%"],
        ["verify", "62%"],
    ]
    assert rows(figures["margins-weights"].all("table")[0])[1:] == [
        ["chain", "0", "3", "7", "9", "0.125", "rounding"],
        ["chain", "2", "3", "7", "9", "1.5", "corruption"],
        ["tree-16", "1", "3", "–", "9", "–", "corruption"],
    ]


def test_timed_ratios_are_drawn_with_their_intervals_and_every_number_stands_beside_them():
    report = of_timing()
    page = read(to_html(report))
    figures = {figure.attributes["id"]: figure for figure in page.all("figure")}
    assert set(figures) == {f"{name}-measured" for name in ("speed", "accepted", "positions", "lengths", "stages")}
    measured = {row["mode"]: row for row in report.sections["measured"]["rows"]}
    told = {row[0]: row[1:] for row in rows(figures["speed-measured"].all("table")[0])[1:]}
    assert list(told) == ["plain again", "chain", "tree-16", "library"]
    for mode, cells in told.items():
        row = measured[mode]
        assert cells == ["plain", *(f"{row[key]:.2f}" for key in ("speed_up", "low", "high")), row["difference"]]
    spans = [p.attributes["d"] for p in figures["speed-measured"].all("path") if "H" in p.attributes["d"]]
    assert len(spans) == 4
    for (mode, cells), span in zip(told.items(), spans, strict=True):
        left, right = map(float, re.match(r"M([\d.]+) [\d.]+H([\d.]+)$", span).groups())
        assert left < right, (mode, cells)
    # 3 of 4 parts of a round are the verification, as the runs say.
    assert rows(figures["stages-measured"].all("table")[0])[2][:2] == ["verify", "75%"]


def test_the_page_of_a_tiny_target_shows_no_seconds_and_marks_the_estimate():
    text = read(to_html(of_timing(parameters=570_000))).text
    assert "ms/token" not in text
    assert "its seconds are not shown" in text
    assert "Estimate for a device bound by reading weights (not measured)" in text
    assert "ms/token (quartiles)" in read(to_html(of_timing(parameters=10**9))).text


def test_bars_are_as_long_as_their_values():
    bars = read(to_html(of_weights())).all("figure", id="accepted-weights")[0].all("rect")
    widths = [float(bar.attributes["width"]) for bar in bars]
    assert len(widths) == 2 and widths[0] / widths[1] == pytest.approx(2 / 3, abs=0.01)


def test_dots_stand_on_their_side_of_the_noise():
    figure = read(to_html(of_weights())).all("figure", id="margins-weights")[0]
    noise = next(p for p in figure.all("path") if "stroke-dasharray" in p.attributes)
    limit = float(re.match(r"M([\d.]+)", noise.attributes["d"]).group(1))
    (rounding,) = figure.all("circle")
    (corruption,) = figure.all("path", class_="series6-line")
    assert float(rounding.attributes["cx"]) < limit
    assert float(re.match(r"M([\d.]+)", corruption.attributes["d"]).group(1)) + 4 > limit


def test_layers_are_drawn_one_by_one_and_those_that_the_draft_reads_are_marked():
    figure = read(to_html(with_cache(example()))).all("figure", id="cache")[0]
    letters = [t.text for t in figure.all("text") if t.text.isalpha()]
    assert letters == (["L"] * 3 + ["F"]) * 5 + ["S", "N"]
    assert len(figure.all("rect", class_="mark")) == 4
    assert [row[:3] for row in rows(figure.all("table")[0])[1:]] == [
        ["L linear", "15", "0–2, 4–6, 8–10, 12–14, 16–18"],
        ["F full", "5", "3, 7, 11, 15, 19"],
        ["S sliding", "1", "20"],
        ["N none", "1", "21"],
        ["thick border", "4", "1–3, 19"],
    ]


def test_a_chart_without_numbers_is_absent_and_what_would_measure_it_is_told():
    page = read(to_html(Report("gate", {}, verdict=verdict())))
    assert not page.all("figure")
    told = [item.all("strong")[0].text for item in page.all("section", id="measured")[0].all("li")]
    assert told == [
        "accepted length",
        "acceptance by position",
        "time by stage",
        "cache by layer",
        "margins",
        "real draft",
    ]
    assert "real draft : compatfix gate TREE --target CHECKPOINT --draft DIR --on weights" in page.text
    full = read(to_html(with_cache(example())))
    assert [item.all("strong")[0].text for item in full.all("section", id="measured")[0].all("li")] == ["real draft"]


def test_an_inspection_has_no_verdict_and_draws_its_cache():
    cache = {"class_name": "DynamicCache", "layers": ["full", "full"]}
    inspection = {"target": {"cache": cache}, "draft": {"layer_ids": [1]}}
    statements = (Statement("cache", "k", "2 full", "measured"), Statement("cache", "x", "maybe", "assumed"))
    page = read(to_html(Report("inspect", {}, statements, sections={"inspection": inspection})))
    assert not page.all("p", class_="headline") and not page.all("ul", class_="scopes")
    assert len(page.all("figure", id="cache")[0].all("rect", class_="mark")) == 1
    assert [item.text for item in page.all("section", id="facts")[0].all("li")] == [
        "2 full (measured)",
        "maybe (assumed)",
    ]


def test_every_run_writes_the_page_and_a_bad_path_does_not_stop_it(tmp_path):
    run = write_report(hostile(), tmp_path)
    assert sorted(path.name for path in run.iterdir()) == sorted(texts_of(hostile()))
    for path in run.iterdir():
        path.read_text(encoding="utf-8")
    again = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert again["subject"]["tree"] == HOSTILE
    assert again["sections"]["benchmark"]["rows"][0]["accepted_length"] is None
