"""Pages in a real browser: headless Chromium opens them as files and a script in them looks around."""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import golden_views as views
import night_store
import pytest
from farm_fixture import Farm
from test_arms_again import two_sites

from farm.cli.main import main
from farm.dashboards import night_pages

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
#: First in the page, so that it hears of every error.
LISTEN = """<script>
const faults = [];
addEventListener("error", (e) => faults.push(e.message));
addEventListener("unhandledrejection", (e) => faults.push(String(e.reason)));
addEventListener("securitypolicyviolation", (e) => faults.push(e.violatedDirective + " " + e.blockedURI));
</script>"""
#: Last in the page: hovers over everything that has a tip, turns every tab, and writes down what it finds.
LOOK = """<script>addEventListener("load", () => {
const all = (what) => [...document.querySelectorAll(what)], page = document.documentElement;
const shown = (e) => e.getClientRects().length > 0;
const wide = () => page.scrollWidth - page.clientWidth;
const found = {overflow: wide(), tables: all("table").filter(shown).length, tips: 0, empty_tips: 0, tabs: 0,
  unlike_tabs: 0, picked: 0, unlike_picks: 0, fetched: performance.getEntriesByType("resource").map((e) => e.name),
  broken: all("a[href^='#']").map((a) => a.getAttribute("href")).filter((h) =>
    h !== "#" && !document.getElementById(decodeURIComponent(h.slice(1)))),
  links: all("a[href]").map((a) => a.getAttribute("href"))};
for (const cell of all("[data-t]").filter(shown)) {
  cell.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  const tip = document.querySelector(".tip");
  found.tips += 1;
  if (!shown(tip) || !tip.textContent.includes(cell.dataset.t)) found.empty_tips += 1;
}
for (const tab of all(".tabs > input")) {
  tab.click();
  found.tabs += 1;
  found.overflow = Math.max(found.overflow, wide());
  if (all(".tabs > input").some((t) => t.value === tab.value && !t.checked)) found.unlike_tabs += 1;
}
for (const pick of all(".pick > input")) {
  pick.click();
  found.picked += 1;
  found.overflow = Math.max(found.overflow, wide());
  const number = pick.id.slice(4), shown_cells = all(".heat p").filter(shown);
  if (shown_cells.some((p) => [...p.parentNode.children].indexOf(p) !== number - 1)) found.unlike_picks += 1;
}
document.dispatchEvent(new Event("scroll"));
all("details").forEach((d) => { d.open = true; });
for (const text of all("svg text").filter(shown)) {
  const of = text.ownerSVGElement, scale = of.getBoundingClientRect().width / of.viewBox.baseVal.width;
  found.smallest = Math.min(found.smallest ?? 99, scale * parseFloat(getComputedStyle(text).fontSize));
}
found.spoilt = all("pre.cmd").filter((c) => c.querySelector("button") || c.textContent.includes("\\n")
  || c.textContent.includes("copy")).length;
found.overflow = Math.max(found.overflow, wide());
const said = document.createElement("pre");
said.id = "found";
said.textContent = JSON.stringify({...found, faults});
document.body.append(said);
});</script>"""


def look(page: Path, folder: Path, width: int) -> dict[str, Any]:
    """What the script finds on a page in a window of so many pixels."""
    text = page.read_text(encoding="utf-8")
    probe = folder / f"{width}-{page.name}"
    probe.write_text(text.replace("<head>", "<head>" + LISTEN, 1).replace("</body>", LOOK + "</body>", 1), "utf-8")
    assert CHROMIUM
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--window-size={width},900", "--virtual-time-budget=5000", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    written = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert written, f"{page.name}: the script did not end: {done.stdout[-500:]}{done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(html.unescape(written[1]))
    return found


def assert_sound(pages: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Every page, in a wide and in a narrow window: page's name -> what was found in the wide one."""
    told = {}
    for page in sorted(pages.glob("*.html")):
        for width in (1280, 500):
            found = look(page, folder, width)
            wrong = {
                k: found[k]
                for k in ("faults", "fetched", "broken", "empty_tips", "unlike_tabs", "unlike_picks")
                if found[k]
            }
            assert not wrong, f"{page.name} at {width} pixels: {wrong}"
            assert not found["spoilt"], f"{page.name}: a button or a line's end is in a command"
            small = found.get("smallest", 99)
            assert small >= 11, f"{page.name}: text of a chart has {small:.1f} pixels at {width}"
            assert found["overflow"] <= 0, f"{page.name} is {found['overflow']} pixels too wide for {width}"
            missing = [h for h in found["links"] if not h.startswith(("#", "http"))]
            missing = [h for h in missing if not (pages / h.partition("#")[0]).exists()]
            assert not missing, f"{page.name} links to what is not there: {missing}"
            told.setdefault(page.name, found)
    assert all(found["tables"] for found in told.values()), told
    return told


@needs_chromium
@pytest.mark.soak(seconds=20)
def test_pages_of_old_runs_in_a_browser(tmp_path: Path) -> None:
    shutil.copytree(views.RUNS, tmp_path / "store" / "runs")
    assert main(["dashboard", "build", "--out", str(tmp_path / "store")]) == 0
    told = assert_sound(tmp_path / "store" / "pages", tmp_path)
    assert len(told) == 7 and sum(found["tips"] for found in told.values())


@needs_chromium
@pytest.mark.soak(seconds=40)
def test_pages_of_thirty_nights_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest night, its run, three backends, comparisons, and a few of the cells, which are alike."""
    monkeypatch.setattr(night_pages, "notable", functools.partial(night_pages.notable, most=2))
    night_store.write_outages(tmp_path / "store")
    assert main(["dashboard", "build", "last", "--out", str(tmp_path / "store")]) == 0
    told = assert_sound(tmp_path / "store" / "pages", tmp_path)
    kinds = {name.partition("-")[0].removesuffix(".html") for name in told}
    assert kinds == {"index", "evidence", "run", "backend", "cell", "compare", "parity"}
    assert sum(found["picked"] for found in told.values()) >= 2 + 5, "contents of a run and of comparisons"


@needs_chromium
@pytest.mark.soak(seconds=25)
def test_pages_of_two_arms_in_a_browser(tmp_path: Path) -> None:
    """Comparisons at two sites, and both merged: each with the page of all results."""
    store = ("--out", str(two_sites(tmp_path) / "store"))
    assert main(["merge", "nv", "amd", "--run-id", "all", "--no-page", *store]) == 1
    assert main(["dashboard", "build", *store]) == 0
    told = assert_sound(tmp_path / "store" / "pages", tmp_path)
    assert {f"{kind}-{name}.html" for kind in ("run", "results") for name in ("nv", "amd", "all")} <= told.keys()
    assert all(told[f"run-{name}.html"]["picked"] for name in ("nv", "amd", "all"))


@needs_chromium
@pytest.mark.soak(seconds=15)
def test_pages_of_a_run_with_every_kind_of_row_in_a_browser(farm: Farm, tmp_path: Path) -> None:
    """Two dtypes give tabs; scripts give each status and timing quality."""
    rules = [
        {"when": {"hidden": 65}, "error": 0.1},
        {"when": {"hidden": 66}, "exit": 3},
        {"when": {"hidden": 67}, "noise": 0.9},
    ]
    text = {
        "name": "rows",
        "op": "rms_norm",
        "axes": {
            "shape": [{"rows": 2, "hidden": list(range(64, 72)), "tag": "odd"}],
            "dtype": ["float32", "bfloat16"],
            "operation": ["forward", "backward"],
        },
        "providers": ["farm", "torch"],
        "exclude": [{"hidden": 68, "reason": "<script>alert(1)</script>"}],
        "sim": {"default": {"time_us": 10}, "rules": rules},
    }
    run = farm(json.dumps(text))
    assert run.wait() == 1, run.said()
    told = assert_sound(run.store.pages, tmp_path)
    assert any(found["tabs"] for found in told.values()) and any(found["tips"] for found in told.values())
