"""The run page holds every cell once, stands alone, and tells nothing that is not so."""

from __future__ import annotations

import gzip
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import HOSTILE, counts_of, fake_run, interrupted_run, row, rows_of_run

from dashboards.pages import Links, run_page, runs_page
from dashboards.runlines import run_line

VOID = {"meta", "input", "col", "br", "wbr", "path", "circle"}
LINKS = Links("index.html", lambda run_id: f"run-{run_id}.html", lambda name: name)


class Page(HTMLParser):
    """Attributes of every element, the text of every heat-map cell, and the visible text."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.cells: dict[int, str] = {}
        self.marks: dict[int, dict[str, str]] = {}
        self.text: list[str] = []
        self._open: int | None = None
        self._raw = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = {k: v or "" for k, v in attrs}
        self.elements.append((tag, given))
        if tag in ("td", "tr", "table"):
            self._open = None
        if tag in ("style", "script"):
            self._raw = tag
        if tag == "td" and "data-cell" in given:
            self._open = int(given["data-cell"])
            assert self._open not in self.cells, "a cell stands twice in the heat maps"
            self.cells[self._open], self.marks[self._open] = "", given

    def handle_endtag(self, tag):
        if tag == self._raw:
            self._raw = ""
        if tag in ("td", "tr", "table"):
            self._open = None

    def handle_data(self, data):
        if self._raw:
            return
        self.text.append(data)
        if self._open is not None:
            self.cells[self._open] += data.strip()

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def run():
    return fake_run()


@pytest.fixture(scope="module")
def html(run):
    return run_page(run, LINKS)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_every_cell_stands_once_in_the_heat_maps(run, page):
    assert set(page.cells) == set(range(len(run.rows))) and len(run.rows) == 4000
    assert all(page.cells.values()), "a planned cell is never blank"


def test_heat_maps_count_what_the_rows_count(run, page):
    shown = Counter(m["class"].removeprefix("s-") for m in page.marks.values() if m["class"].startswith("s-"))
    want = {s: n for s, n in counts_of(run.rows).items() if s != "passed"} | {"impossible": 2}
    assert shown == want


def test_each_kind_of_failure_has_its_own_glyph(run, page):
    glyphs = {}
    for i, text in page.cells.items():
        status = run.rows[i]["status"]
        if status != "passed":
            glyphs.setdefault(status, set()).add(text.split()[0])
    assert all(len(g) == 1 for g in glyphs.values())
    assert len({next(iter(g)) for g in glyphs.values()}) == len(glyphs) == 8


def test_a_failed_cell_leads_to_the_group_that_tells_about_it(html, run, page):
    anchors = {a["id"] for _, a in page.elements if "id" in a}
    leads = [a["href"][1:] for tag, a in page.elements if tag == "a" and a.get("href", "").startswith("#")]
    assert set(leads) <= anchors
    failed = [r for r in run.rows if r["status"] not in ("passed", "unsupported", "skipped")]
    in_cells = re.findall(r"<td [^>]*><a href=#", html)
    assert len(in_cells) == len(failed) + 2  # and the two impossible timings


def test_the_ledger_adds_up_and_is_said(page):
    assert "4,000 planned = 3,896 passed" in page.said
    assert "Do not trust" not in page.said


def test_the_file_stands_alone(html, page):
    for tag, attrs in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert not (tag == "script" and "src" in attrs)
        for value in attrs.values():
            assert not re.match(r"\s*(https?:)?//", value), value
            assert "url(" not in value
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style and "@import" not in style and "@font-face" not in style
    assert not re.search(r"https?://", html)


def test_size_for_four_thousand_cells(html):
    assert len(gzip.compress(html.encode(), 6)) <= 150_000


def test_html_is_closed(html):
    for tag in ("div", "section", "article", "table", "details", "span", "svg", "p", "pre", "a", "em", "code", "dl"):
        assert len(re.findall(rf"<{tag}[\s>]", html)) == html.count(f"</{tag}>"), tag


def test_without_scripts_nothing_is_out_of_reach(html, page):
    """Only tabs hide anything, and a tab is a radio button that works without script."""
    style = html[html.index("<style>") : html.index("</style>")]
    hiding = [rule.rsplit("}", 1)[-1].split("{")[0] for rule in re.findall(r"[^{}]+\{[^{}]*display:none[^{}]*", style)]
    assert {h.strip() for h in hiding} == {".pane", ".tip", "nav"}  # nav: on paper only
    assert not any("hidden" in a or "display:none" in a.get("style", "") for _, a in page.elements)
    groups = Counter(a["name"] for tag, a in page.elements if tag == "input")
    checked = Counter(a["name"] for tag, a in page.elements if tag == "input" and "checked" in a)
    assert set(groups) == set(checked) and set(checked.values()) == {1}
    assert sum(groups.values()) == sum(1 for _, a in page.elements if a.get("class") == "pane")
    assert max(groups.values()) <= 10, "farm.css shows at most ten panes"


def test_hostile_text_is_only_text(html, page):
    assert HOSTILE in page.said
    assert "<script>alert" not in html
    assert sum(1 for tag, _ in page.elements if tag == "script") == 1
    names = '"><script>alert(1)</script>'
    bad = [
        row(0, provider=names, mode=names, tag=names, status="crashed", reason=names, evidence="interpreted", log=names)
    ]
    bad[0].update(shape=names, operation=names, worst_output=names, worst_ratio=9.0, status="inaccurate")
    run = fake_run(bad, command=names, created=names, matrices=[{"name": names, "path": names, "sha256": names}])
    run.head["revision"]["commit"] = names
    other = Page(run_page(run, LINKS))
    assert sum(1 for tag, _ in other.elements if tag == "script") == 1
    listed = runs_page([run_line(run.head, names, lambda: run)], LINKS)
    assert sum(1 for tag, _ in Page(listed).elements if tag == "script") == 1


def test_an_impossible_timing_says_why_where_something_was_seen():
    rows = [row(0, timing_quality="impossible", flags='["<b>worked on after its stream</b>"]'), row(1)]
    section = run_page(fake_run(rows), LINKS).split('<section id="impossible">')[1].split("</section>")[0]
    assert "&lt;b&gt;worked on after its stream" in section and section.count("<li>") == 1


def test_a_run_that_was_judged_again_says_of_what():
    html = run_page(fake_run(rows_of_run(50), kind="judged", derived_from=HOSTILE), LINKS)
    assert "Judged again from the stored metrics of run" in html and HOSTILE not in html
    assert "Judged again" not in run_page(fake_run(rows_of_run(50)), LINKS)


def test_an_impossible_timing_shows_no_speed(run, html, page):
    spots = [i for i, r in enumerate(run.rows) if r["timing_quality"] == "impossible"]
    assert len(spots) == 2
    for i in spots:
        assert page.cells[i] == "⊘"
        assert not re.search(r"µs|GB/s|% of roof", page.marks[i]["data-t"])
    assert "987654" not in html and "987,654" not in html and "988" not in page.cells.values()


def test_untimed_cells_show_errors_and_never_a_speed(run, page):
    for i, r in enumerate(run.rows):
        if r["backend"] == "cpu" and r["status"] == "passed":
            assert page.marks[i]["class"].startswith("e")
            assert page.cells[i] == "<.01" or float(page.cells[i]) <= 1


def test_an_interrupted_run_says_so_and_shows_the_lost(page):
    run = interrupted_run(120, 70)
    other = Page(run_page(run, LINKS))
    assert "Interrupted: 50 cells of 120 lost" in other.said
    assert sum(text == "?" for text in other.cells.values()) == 50
    assert len(other.cells) == 120
    assert "passed." not in other.said[: other.said.index("planned")]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda r: r.rows.pop(), "add up to 119, but 120 cells were planned"),
        (lambda r: r.rows.append(dict(r.rows[0])), "stand twice"),
        (lambda r: r.rows[0].update(status="maybe"), "not in the closed set"),
        (lambda r: r.head.update(verdict="passed"), "run.json says `passed`"),
        (lambda r: r.head.update(schema=99), "schema 99"),
        (lambda r: r.head["counts"].update(passed=1), "other statuses"),
    ],
)
def test_a_run_that_does_not_fit_together_is_told_loudly(fault, told):
    rows = rows_of_run(120)
    rows[1].update(status="crashed", reason="x", fault_owner="kernel")
    run = fake_run(rows, planned=120)
    assert "Do not trust" not in Page(run_page(run, LINKS)).said
    fault(run)
    said = Page(run_page(run, LINKS)).said
    assert "Do not trust this run" in said and told in said


def test_keys_have_their_glyph_before_the_word_and_no_empty_column():
    rows = [row(0, evidence="interpreted"), row(1, status="skipped"), row(2, status="lost")]
    said = Page(run_page(fake_run(rows), LINKS)).said
    assert "3 planned = 1 passed · 1 skipped ? 1 lost" in said
    assert "of roof" not in said
    timed = row(0, evidence="executed", backend="cuda", time_us_p50=9.0, timing_quality="ok", bandwidth_gbps=5.0)
    assert "of roof" not in Page(run_page(fake_run([timed]), LINKS)).said
    assert "of roof" in Page(run_page(fake_run([{**timed, "share_of_roof": 0.5}]), LINKS)).said


def test_the_card_of_an_interrupted_run_is_not_green():
    said = Page(run_page(interrupted_run(120, 4), LINKS)).said
    card = said[said.index("passed / planned") : said.index("The farm’s own faults")]
    assert "farm 64 lost" in card and "torch peer" in card and re.search(r"farm 64 lost \d+ /\d+", card), card


def test_a_log_tail_travels_with_the_page(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text("first\n" * 500 + "SIGSEGV <here>\n")
    (tmp_path / "secret").write_text("do not show")
    rows = [row(0, status="crashed", reason="signal 11", log="logs/a.log", evidence="interpreted")]
    rows.append(row(1, status="crashed", reason="signal 11", log="logs/../secret", mode="row_packed"))
    run = fake_run(rows)
    run.dir = tmp_path
    other = Page(run_page(run, LINKS))
    assert "SIGSEGV <here>" in other.said
    assert "do not show" not in other.said


def test_the_list_of_runs(run, page):
    lines = [run_line(r.head, r.id, lambda r=r: r) for r in (run, interrupted_run())]
    said = Page(runs_page(lines, LINKS)).said
    assert said.index("20260802-030000-dead") < said.index(run.id), "newest first"
    assert "interrupted" in said and "farm fault" in said and "2,300 passed" in said
    assert "No runs yet" in Page(runs_page([], LINKS)).said
