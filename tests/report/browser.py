"""A real browser without a window: what a page logs, fetches and measures."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(FOUND is None, reason="no Chromium on this machine (apt-get install chromium)")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
    # Messages between frames arrive behind the load event; the browser's own clock waits for them without delay.
    "--virtual-time-budget=3000",
)
# In a frame of the wanted width, since the browser's own window has a least width above that of a phone.
FRAME = """<!doctype html><body><iframe src="{page}" style="width:{width}px;height:800px;border:0"></iframe>
<pre id="result">nothing came</pre><script>
addEventListener("message", event => document.getElementById("result").textContent = event.data)
</script>"""


@dataclass(frozen=True)
class Visit:
    """`dom` after loading, lines of the `console`, and `fetched` addresses (those that the page itself asked for)."""

    dom: str
    console: list[str]
    fetched: list[str]


def visit(page: Path, scratch: Path, *, dark: bool = False) -> Visit:
    """Loads a file; `scratch` is an empty directory for the browser's profile and its log."""
    log = scratch / "net.json"
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    profile = [f"--user-data-dir={scratch / 'profile'}", f"--log-net-log={log}", "--enable-logging=stderr"]
    command = [FOUND, *FLAGS, *theme, *profile, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Visit(done.stdout, console, _fetched(log))


def _fetched(log: Path) -> list[str]:
    """Addresses from the browser's own log; what the browser asks for itself has no page as its initiator."""
    text = log.read_text(encoding="utf-8")
    data = json.loads(text if text.rstrip().endswith("}") else text.rstrip().rstrip(",") + "]}")
    asked = [event.get("params") or {} for event in data["events"]]
    return sorted({p["url"] for p in asked if "url" in p and p.get("initiator", "not an origin") != "not an origin"})


def measure(html: str, script: str, scratch: Path, *, width: int, dark: bool = False):
    """What `script` (an expression) gives in a copy of the page that is `width` pixels wide."""
    told = f"<script>addEventListener('load', () => parent.postMessage(JSON.stringify({script}), '*'))</script>"
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html, count=1)
    assert copy != html
    (scratch / "page.html").write_text(copy.replace("</body>", f"{told}</body>"), encoding="utf-8")
    (scratch / "frame.html").write_text(FRAME.format(page="page.html", width=width), encoding="utf-8")
    dom = visit(scratch / "frame.html", scratch, dark=dark).dom
    result = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)
    assert result, dom
    return json.loads(unescape(result.group(1)))
