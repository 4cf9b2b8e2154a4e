"""The look of report.html: two sets of colours and one style sheet. No image, font or script is fetched."""

from __future__ import annotations

from collections.abc import Mapping

# Names say what a colour is for. `*_on` is the background that its text stands on. The pairs in TEXT_PAIRS are held to
# a contrast of 4.5, those in GRAPHIC_PAIRS to 3 (WCAG 2.2, 1.4.3 and 1.4.11).
LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "panel": "#f5f7f9",
    "ink": "#1b2026",
    "muted": "#545d68",
    "rule": "#d3d9e0",
    "axis": "#7b8592",
    "link": "#0a55c4",
    "passed": "#0f6127",
    "passed_on": "#e3f4e7",
    "failed": "#a1122a",
    "failed_on": "#fdeaec",
    "undecided": "#744800",
    "undecided_on": "#fdf1d5",
    "unmeasured": "#4a525c",
    "unmeasured_on": "#e9edf1",
    "series1": "#66707c",
    "series2": "#0b62c4",
    "series3": "#b25600",
    "series4": "#7040b8",
    "series5": "#0a7869",
    "series6": "#b0256d",
    "tint1": "#d3e4fb",
    "tint2": "#fbe0c6",
    "tint3": "#e3d8fa",
    "tint4": "#c9ece5",
    "tint5": "#e4e8ed",
}
DARK: Mapping[str, str] = {
    "page": "#13161a",
    "panel": "#1c2127",
    "ink": "#e6e9ee",
    "muted": "#a5aeba",
    "rule": "#343c46",
    "axis": "#7d8794",
    "link": "#8db6ff",
    "passed": "#84e3a4",
    "passed_on": "#12301e",
    "failed": "#ffa1ab",
    "failed_on": "#3c171c",
    "undecided": "#f3c772",
    "undecided_on": "#35290d",
    "unmeasured": "#b8c0cb",
    "unmeasured_on": "#2a3139",
    "series1": "#a5aeba",
    "series2": "#6aa8ff",
    "series3": "#f0a050",
    "series4": "#b998f7",
    "series5": "#45c8b4",
    "series6": "#f07ab8",
    "tint1": "#1f3b60",
    "tint2": "#573615",
    "tint3": "#3d2b62",
    "tint4": "#114d45",
    "tint5": "#303740",
}
_TINTS = tuple(f"tint{n}" for n in range(1, 6))
SERIES = tuple(f"series{n}" for n in range(1, 7))
TEXT_PAIRS = (
    *((text, on) for text in ("ink", "muted", "link") for on in ("page", "panel")),
    *((status, f"{status}_on") for status in ("passed", "failed", "undecided", "unmeasured")),
    *(("ink", tint) for tint in _TINTS),
)
GRAPHIC_PAIRS = tuple((colour, "page") for colour in (*SERIES, "axis"))

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;overflow-wrap:anywhere}
main,header,footer{max-width:64rem;margin:0 auto;padding:0 1rem}
header{padding-top:1.75rem}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .5rem;font-weight:650}
h2{font-size:1.2rem;margin:2.75rem 0 .75rem;padding-bottom:.35rem;border-bottom:1px solid var(--rule);font-weight:650}
h3{font-size:1rem;margin:0;font-weight:650}
p{margin:.35rem 0}
a{color:var(--link)}
a:focus-visible,[tabindex]:focus-visible,summary:focus-visible{outline:3px solid var(--link);outline-offset:2px}
code,.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.875em}
.skip{position:absolute;left:-100rem}
.skip:focus{left:1rem;top:.5rem;background:var(--page);padding:.25rem .5rem}
.muted,figcaption,caption,.note{color:var(--muted)}
.headline{display:flex;flex-wrap:wrap;gap:.6rem;align-items:baseline;font-size:1.05rem;margin:.25rem 0 1rem}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;padding:0;margin:1rem 0 0;font-size:.9rem}
dl.subject{display:grid;grid-template-columns:fit-content(40%) minmax(0,1fr);gap:.15rem 1rem;margin:0;font-size:.9rem}
dl.subject dt{color:var(--muted)}
dl.subject dd{margin:0;min-width:0}
.badge{display:inline-block;border-radius:.3rem;padding:.05rem .5rem;font-size:.85rem;font-weight:600;
white-space:nowrap;border:1px solid currentcolor}
.passed{color:var(--passed);background:var(--passed_on)}
.failed,.error{color:var(--failed);background:var(--failed_on)}
.undecided,.warning{color:var(--undecided);background:var(--undecided_on)}
.unmeasured,.note-level,.known{color:var(--unmeasured);background:var(--unmeasured_on)}
ul.plain{list-style:none;padding:0;margin:0}
.scopes li{display:grid;grid-template-columns:13.5rem minmax(0,1fr);gap:.15rem 1rem;padding:.7rem 0;
border-bottom:1px solid var(--rule)}
.scopes li:last-child,.findings li:last-child{border-bottom:0}
.scopes h3{display:flex;flex-wrap:wrap;justify-content:space-between;gap:.5rem;align-items:baseline;
overflow-wrap:normal;align-self:start}
.scopes p{margin:0}
.findings>li{padding:.55rem 0;border-bottom:1px solid var(--rule)}
.findings .head{display:flex;flex-wrap:wrap;gap:.4rem .6rem;align-items:baseline;margin:0 0 .2rem}
.fix{background:var(--panel);border-radius:.3rem;padding:.3rem .6rem;margin:.35rem 0 0}
figure{margin:0 0 2.5rem;display:grid;gap:.75rem 2rem;grid-template-columns:minmax(0,26rem) minmax(0,1fr)}
figure h3{grid-column:1/-1}
figcaption{grid-column:1/-1;font-size:.9rem;margin-top:-.5rem}
svg{display:block;width:100%;height:auto;max-width:27rem}
svg text{fill:var(--ink);font-family:inherit;font-size:10.5px}
svg .small{font-size:9px}
svg .soft{fill:var(--muted)}
svg .axis{stroke:var(--axis);stroke-width:1;fill:none}
svg .grid{stroke:var(--rule);stroke-width:1}
svg .band{fill:var(--rule)}
svg .mark{stroke:var(--ink);stroke-width:1.5;fill:none}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;overflow-wrap:normal}
section.wide{margin-bottom:2rem}
section.wide table{min-width:min(100%,40rem)}
section.wide caption{color:var(--ink);font-size:1rem;font-weight:650}
caption{text-align:left;padding:0 0 .35rem;font-size:.9rem}
figure caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
th,td{text-align:left;vertical-align:top;padding:.2rem .9rem .2rem 0;border-bottom:1px solid var(--rule)}
thead th{color:var(--muted);font-weight:600;border-bottom-color:var(--axis);white-space:nowrap}
tbody th{font-weight:500}
th.short{white-space:nowrap}
td.number,th.number{text-align:right;white-space:nowrap}
td.prose{min-width:14rem;overflow-wrap:anywhere}
figure td.prose{min-width:8rem}
figure :is(th,td){padding-right:.7rem}
p.note{font-size:.9rem}
ul.plain+h3,h3.topic{margin:1.1rem 0 .2rem}
.evidence{color:var(--muted);font-size:.85rem;white-space:nowrap}
footer{padding:2.5rem 1rem 3rem;color:var(--muted);font-size:.85rem}
@media (max-width:46rem){
figure{grid-template-columns:minmax(0,1fr)}
.scopes li{grid-template-columns:1fr}
}
@media print{nav,.skip{display:none}figure,li{break-inside:avoid}}
"""


def style_sheet() -> str:
    """The whole style sheet; the dark colours apply where the reader's system asks for them."""
    fills = "".join(f"svg .{name}{{fill:var(--{name})}}svg .{name}-line{{stroke:var(--{name})}}" for name in SERIES)
    tints = "".join(f"svg .{name}{{fill:var(--{name});stroke:var(--axis)}}" for name in _TINTS)
    return (
        f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}{_RULES}{fills}{tints}"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
