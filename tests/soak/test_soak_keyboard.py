"""Pages by keyboard, without scripts, and on paper: the planted site of three backends and thirty nights in Chromium.

By keyboard: every link, button, fold and group of radio buttons is reached by Tab and by Shift+Tab, in the order of the
page, is marked where it stands, is hidden by nothing, and lets go again; arrow keys reach every radio button.  Without
scripts the same text stands there.  On paper no table is wider than the sheet, and no row is cut.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from test_arms_again import two_sites
from test_soak_site import first_of_each
from test_soak_site import site as site

from farm.cli.main import main

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
#: In the page: what Tab should reach, in order; of a group of radio buttons one.
STOPS = """(() => {
  const groups = new Set();
  const some = document.querySelectorAll("a[href],button,input,select,textarea,summary,[tabindex]");
  window.stops = [...some].filter((e) => {
    if (e.tabIndex < 0 || e.disabled || !e.checkVisibility({visibilityProperty: true})) return false;
    if (e.type !== "radio") return true;
    const mine = e.form ? e : e.name;
    const checked = document.querySelector(`input[type=radio][name="${CSS.escape(e.name)}"]:checked`);
    if (checked ? checked !== e : groups.has(mine)) return false;
    groups.add(mine);
    return true;
  });
  getSelection().removeAllRanges();
  if (document.activeElement) document.activeElement.blur();
  scrollTo(0, 0);
  return {stops: stops.length, jumps: stops.filter((e) => e.tabIndex > 0).length};
})()"""
#: In the page: where the keyboard stands; null outside of the page.
HERE = """(() => {
  const e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement) return null;
  const seen = [e, ...(e.labels || [])].filter((x) => {
    const box = x.getBoundingClientRect(), style = getComputedStyle(x);
    return box.width > 1 && box.height > 1 && style.opacity !== "0";
  });
  const marked = seen.some((x) => {
    const style = getComputedStyle(x);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  });
  const hit = (x) => [...x.getClientRects()].some((box) => {
    const at = document.elementFromPoint((Math.max(box.left, 0) + Math.min(box.right, innerWidth)) / 2,
      (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2);
    return at && (x.contains(at) || at.contains(x));
  });
  const tip = document.querySelector(".tip");
  if (tip) tip.style.display = "none";  // what a script shows of the very thing
  return {number: stops.indexOf(e), marked, hidden: !seen.some(hit), checked: e.checked,
    scrolls: e.scrollHeight > e.clientHeight || e.scrollWidth > e.clientWidth,
    what: e.outerHTML.slice(0, 140), at: [scrollX, scrollY]};
})()"""
#: In the page: the radio buttons by group, and what is shown when each is chosen.
RADIOS = """(() => {
  const shown = [...document.querySelectorAll("input[type=radio]")].filter((e) => e.checkVisibility());
  window.groups = [...new Set(shown.map((e) => e.name))].map((name) => shown.filter((e) => e.name === name));
  return groups.map((of) => of.length);
})()"""
TEXT = r"""(() => {
  document.querySelectorAll(".tip, button").forEach((e) => e.remove());
  return document.documentElement.textContent.replace(/\s+/g, " ") +
    [...document.querySelectorAll("[title],[aria-label]")].map((e) => e.title + e.getAttribute("aria-label")).join(" ");
})()"""
SHOWN = r"document.body.innerText.replace(/\s+/g, ' ')"
#: In the page, as on paper: what is wider than the sheet, or than the box in which it cannot be scrolled there.
CUT = """[...document.querySelectorAll("table, svg, pre, .scroll, .card")].filter((e) => {
  if (!e.checkVisibility()) return false;
  const box = e.getBoundingClientRect(), clips = getComputedStyle(e).overflowX !== "visible";
  return box.right > document.documentElement.clientWidth + 1 || (clips && e.scrollWidth > e.clientWidth + 1);
}).map((e) => `${e.outerHTML.slice(0, 90)} ${e.scrollWidth} of ${e.clientWidth}`)"""
WORDS = "[...document.querySelectorAll('td, th')].filter((e) => e.checkVisibility()).map((e) => e.innerText)"
#: The width of the sheet for which the pages ask, A4 across with margins of 1 cm, in CSS pixels.
SHEET = 1046


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as found:
        yield found


def walk(browser: Browser, back: bool) -> list[dict[str, Any]]:
    """Every stop of Tab, until the keyboard leaves the page."""
    expected = browser.value(STOPS)
    assert not expected["jumps"], "an order of its own (tabindex above 0)"
    found: list[dict[str, Any]] = []
    for _ in range(2 * expected["stops"] + 50):
        browser.press("Tab", shift=back)
        here = browser.value(HERE)
        if here is None:
            break
        found.append(here)
    else:
        pytest.fail(f"the keyboard does not leave: {found[-3:]}")
    numbers = [f["number"] for f in found if f["number"] >= 0]
    assert sorted(numbers) == list(range(expected["stops"])), "not reached, or twice"
    assert numbers == sorted(numbers, reverse=back), "out of order"
    for stop in found:
        assert stop["marked"], f"nothing shows where the keyboard is: {stop}"
        assert not stop["hidden"], f"hidden by something: {stop}"
        assert stop["number"] >= 0 or stop["scrolls"], f"a stop that does nothing: {stop}"
    return found


@pytest.mark.soak(seconds=60)
@pytest.mark.parametrize("width", (1280, 480))
def test_pages_by_keyboard(site: Path, browser: Browser, width: int) -> None:
    for page in first_of_each(site):
        browser.window(width)
        for back in (False, True):
            browser.open(page.as_uri())
            try:
                assert walk(browser, back), "nothing is reached"
            except AssertionError as error:
                raise AssertionError(f"{page.name} at {width}{' backwards' if back else ''}: {error}") from error
        _arrows(browser, page)


def _arrows(browser: Browser, page: Path) -> None:
    """Arrow keys choose every radio button of a group, and each shows something else."""
    browser.open(page.as_uri())
    browser.value(STOPS)
    for group, count in enumerate(browser.value(RADIOS)):
        browser.value(f"groups[{group}].find((e) => e.checked).focus()")
        seen = set()
        for _ in range(count):
            browser.press("ArrowRight")
            here = browser.value(HERE)
            assert here and here["checked"] and here["marked"] and not here["hidden"], (page.name, here)
            seen.add((here["what"], browser.value(SHOWN)))
        assert len({what for what, _ in seen}) == len({text for _, text in seen}) == count, (page.name, group)


@pytest.mark.soak(seconds=15)
def test_the_same_text_stands_there_without_scripts(site: Path, browser: Browser) -> None:
    for page in sorted(site.glob("*.html")):
        texts, shown = [], []
        for scripts in (True, False):
            browser.open(page.as_uri(), scripts)
            texts.append(re.sub(r"<script.*", "", browser.value(TEXT)))
            shown.append(browser.value(SHOWN))
        assert texts[0] == texts[1], page.name
        assert shown[0] == shown[1] and len(shown[0]) > 300, page.name


@pytest.mark.soak(seconds=40)
def test_nothing_is_cut_on_paper(site: Path, browser: Browser, tmp_path: Path) -> None:
    for page in first_of_each(site):
        browser.open(page.as_uri(), scripts=False)
        browser.window(SHEET, media="print")
        assert not (cut := browser.value(CUT)), f"{page.name} is cut on paper: {cut}"
        browser.window(1280)
        asked = {"preferCSSPageSize": True, "printBackground": False}
        printed = base64.b64decode(browser.ask("Page.printToPDF", **asked)["data"])
        assert printed.startswith(b"%PDF")
        _words_on_paper(browser, page, printed, tmp_path)


def _words_on_paper(browser: Browser, page: Path, printed: bytes, folder: Path) -> None:
    """Every word of a page's tables is on its sheets, where a tool can read them."""
    if shutil.which("pdftotext") is None:
        return
    (folder / "page.pdf").write_bytes(printed)
    done = subprocess.run(["pdftotext", "-raw", folder / "page.pdf", "-"], capture_output=True, timeout=60, check=True)
    squeezed = re.sub(r"[\s\u00ad-]+", "", done.stdout.decode("utf-8", "replace"))
    browser.window(SHEET, media="print")
    words = browser.value(WORDS)
    browser.window(1280)
    missing = {w for w in words if (plain := re.sub(r"[\s\u00ad-]+", "", w)) and plain not in squeezed}
    assert not missing, f"{page.name}: not on paper: {sorted(missing)[:10]}"


@pytest.mark.soak(seconds=30)
def test_pages_of_two_arms_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    """A comparison and all its results, merged of two sites."""
    store = two_sites(tmp_path) / "store"
    assert main(["merge", "nv", "amd", "--run-id", "all", "--no-page", "--out", str(store)]) == 1
    assert main(["dashboard", "build", "--out", str(store)]) == 0
    browser.window(1280)
    for name in ("run-all", "results-all"):
        page = store / "pages" / f"{name}.html"
        for back in (False, True):
            browser.open(page.as_uri())
            assert walk(browser, back)
        _arrows(browser, page)


def _script(event: str, what: str) -> str:
    return f"<script>addEventListener('{event}', (e) => {{ {what} }})</script>"


#: What is planted in a page -> which words of the failure name it.
PLANTS = {
    "<style>:focus-visible{outline:none!important}</style>": "nothing shows where the keyboard is",
    '<a href="#x" tabindex="3">first</a>': "an order of its own",
    _script("keydown", "if (document.activeElement.matches('summary')) e.preventDefault()"): "does not leave",
    '<div style="position:fixed;inset:0;z-index:99"></div>': "hidden by something",
    _script("focusin", "if (e.target.matches('p a')) e.target.blur()"): "not reached",
}


@pytest.mark.soak(seconds=15)
@pytest.mark.parametrize("planted", PLANTS, ids=["mark", "order", "trap", "cover", "skipped"])
def test_a_planted_barrier_is_found(planted: str, site: Path, browser: Browser, tmp_path: Path) -> None:
    text = (site / "index.html").read_text()
    (tmp_path / "page.html").write_text(text.replace("</body>", planted + "</body>"))
    browser.window(1280)
    browser.open((tmp_path / "page.html").as_uri())
    with pytest.raises((AssertionError, pytest.fail.Exception), match=PLANTS[planted]):
        walk(browser, back=False)


@pytest.mark.soak(seconds=10)
def test_planted_script_text_and_a_cut_table_are_found(site: Path, browser: Browser, tmp_path: Path) -> None:
    text, page = (site / "index.html").read_text(), tmp_path / "page.html"
    page.write_text(text.replace("</body>", "<script>document.body.append('by script')</script></body>"))
    shown = []
    for scripts in (True, False):
        browser.open(page.as_uri(), scripts)
        shown.append(browser.value(SHOWN))
    assert shown[0] != shown[1]
    wide = "<div style='overflow:hidden'><table style='width:3000px'><tr><td>a<td>b</table></div>"
    page.write_text(text.replace("</body>", wide + "</body>"))
    browser.open(page.as_uri(), scripts=False)
    browser.window(SHEET, media="print")
    assert len(browser.value(CUT)) == 1
