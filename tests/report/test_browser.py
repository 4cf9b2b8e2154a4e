"""report.html in a real browser: silent, self-contained, as wide as a phone, readable in both themes."""

import pytest

from compatfix.report.html import to_html
from compatfix.report.style import DARK, LIGHT

from .browser import measure, needs_browser, visit
from .made import example, hostile, of_timing, of_weights, with_cache

pytestmark = needs_browser

LAYOUT = """(() => {
  const scrollers = [...document.querySelectorAll('.scroll')];
  for (const box of scrollers) box.scrollLeft = 1e6;
  return {
    width: innerWidth,
    page: document.documentElement.scrollWidth,
    unreachable: scrollers.filter(b => b.scrollLeft + b.clientWidth < b.scrollWidth - 1).length,
    tables: scrollers.length,
    widest: Math.max(0, ...scrollers.map(b => b.getBoundingClientRect().right)),
    drawings: [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right),
    smallest: Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)),
    focusable: scrollers.filter(b => (b.focus(), document.activeElement === b)).length,
  }
})()"""

# The contrast of every piece of text against the background that it really stands on.
CONTRAST = """(() => {
  const channels = c => c.match(/[\\d.]+/g).map(Number);
  const luminance = c => channels(c).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor, parts = channels(c);
      if (parts.length < 4 || parts[3] > 0) return c;
    }
    return 'rgb(255, 255, 255)';
  };
  let least = 99, where = '', count = 0;
  for (const e of document.querySelectorAll('body *:not(script):not(style)')) {
    if (e.closest('svg') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [low, high] = [luminance(getComputedStyle(e).color), luminance(behind(e))].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    count += 1;
    if (ratio < least) { least = ratio; where = e.outerHTML.slice(0, 200); }
  }
  const body = getComputedStyle(document.body);
  return {least, where, count, page: body.backgroundColor, ink: body.color};
})()"""


@pytest.fixture(scope="module")
def pages():
    reports = {"example": with_cache(example()), "weights": of_weights(), "timing": of_timing(), "hostile": hostile()}
    return {name: to_html(report) for name, report in reports.items()}


def test_the_tools_of_these_tests_see_what_they_look_for(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        '<!doctype html><body><img src="http://127.0.0.1:9/x.png"><script>console.error("seen")</script></body>'
    )
    seen = visit(page, tmp_path)
    assert seen.fetched == ["http://127.0.0.1:9/x.png"]
    assert any("seen" in line for line in seen.console)
    wide = '<meta http-equiv="Content-Security-Policy" content="x"><body><div style="width:600px">x</div></body>'
    assert measure(wide, LAYOUT.replace("Math.min(", "Math.min(0, "), tmp_path, width=360)["page"] >= 600


@pytest.mark.parametrize("name", ["example", "hostile"])
def test_the_page_fetches_nothing_and_logs_nothing(pages, name, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(pages[name], encoding="utf-8")
    seen = visit(page, tmp_path)
    assert "Verdict by scope" in seen.dom
    assert seen.fetched == []
    assert seen.console == []


@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize("name", ["example", "weights", "timing", "hostile"])
def test_the_page_is_as_wide_as_the_screen(pages, name, width, tmp_path):
    seen = measure(pages[name], LAYOUT, tmp_path, width=width)
    assert seen["width"] == width
    assert seen["page"] <= width
    assert seen["widest"] <= width and max(seen["drawings"], default=0) <= width
    assert seen["unreachable"] == 0
    assert seen["focusable"] == seen["tables"] > 0
    assert seen["smallest"] >= 9


@pytest.mark.parametrize(("dark", "colours"), [(False, LIGHT), (True, DARK)], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["example", "hostile"])
def test_every_text_can_be_read_in_both_themes(pages, name, dark, colours, tmp_path):
    seen = measure(pages[name], CONTRAST, tmp_path, width=800, dark=dark)
    assert seen["count"] > 50
    assert seen["page"] == rgb(colours["page"]) and seen["ink"] == rgb(colours["ink"])
    assert seen["least"] >= 4.5, seen["where"]


def rgb(colour):
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))
