"""The run page has every cell once, is self-contained, and states nothing false."""

from __future__ import annotations

import gzip
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import HOSTILE, again, counts_of, fake_run, interrupted_run, row, rows_of_run, wide_rows

from farm.dashboards.contents import CONTENTS, others, values
from farm.dashboards.pages import Against, Links, evidence_page, run_page, runs_page
from farm.report import glossary, queries, run_verdict, wording
from farm.report.format import clip, current
from farm.report.run_lines import run_line

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
        self._after = 0
        self._raw = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = {k: v or "" for k, v in attrs}
        self.elements.append((tag, given))
        if tag in ("td", "tr", "table"):
            self._open = None
        if tag in ("style", "script"):
            self._raw = tag
        if tag == "td" and re.fullmatch(r"c\d+", given.get("id", "")):
            self._open = int(given["id"][1:])
            assert self._open not in self.cells, "a cell appears twice in the heat maps"
            self.cells[self._open], self.marks[self._open], self._after = "", given, 0
        elif tag == "p" and self._open is not None:
            self._after += bool(self.cells[self._open])  # the first of a cell's contents

    def handle_endtag(self, tag):
        if tag == self._raw:
            self._raw = ""
        if tag in ("td", "tr", "table"):
            self._open = None

    def handle_data(self, data):
        if self._raw:
            return
        self.text.append(data)
        if self._open is not None and not self._after:
            self.cells[self._open] += data.strip()

    @property
    def shown(self) -> str:
        return " ".join(" ".join(self.text).split())

    @property
    def ids(self) -> list[str]:
        """The identifiers of the sentences on the page."""
        return [a["data-id"] for _, a in self.elements if "data-id" in a]

    @property
    def alerts(self) -> list[str]:
        return [a["data-id"] for _, a in self.elements if a.get("role") == "alert"]


@pytest.fixture(scope="module")
def run():
    return fake_run()


@pytest.fixture(scope="module")
def html(run):
    return run_page(run, LINKS)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_every_cell_appears_once_in_the_heat_maps(run, page):
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


def test_a_failed_cell_links_to_the_group_that_reports_it(html, run, page):
    anchors = {a["id"] for _, a in page.elements if "id" in a}
    leads = [a["href"][1:] for tag, a in page.elements if tag == "a" and a.get("href", "").startswith("#")]
    assert set(leads) <= anchors
    failed = [r for r in run.rows if r["status"] not in ("passed", "unsupported", "skipped")]
    in_cells = re.findall(r"<td [^>]*><a href=#", html)
    assert len(in_cells) == len(failed) + 2  # and the two impossible timings


def test_the_ledger_adds_up_and_is_shown(page):
    assert "4,000 planned = 3,896 passed" in page.shown
    assert page.alerts == []


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


@pytest.fixture(scope="module")
def wide():
    """A page with all six contents: three vendors, each with times, peers, shares, registers, and a baseline."""
    rows = wide_rows()
    assert len(rows) == 4000 and len({r["backend"] for r in rows}) == 3
    run = fake_run(rows)
    return run_page(run, LINKS, Against.of(fake_run(again(rows, 3), "20260731-021500-a1b2"), run))


def test_size_for_four_thousand_cells(html, wide):
    assert len(gzip.compress(html.encode(), 6)) <= 150_000
    assert len(gzip.compress(wide.encode(), 6)) <= 150_000


def test_a_cell_has_every_content(wide):
    assert re.findall(r'name="content" id="show(\d)" value="(\w+)"', wide) == [
        (str(i), name) for i, name in enumerate(CONTENTS, 1)
    ]
    first = re.search(r"<td id=c0 class=v\d+ [^>]*>(.*?)(?=<td|</tr>)", wide)[1]
    assert first.count("<p") == 6 and "<p>" not in first.split("<p>", 3)[2], first
    texts = [re.sub(r"<small>.*|<sup>.*", "", v) for v in re.split(r"<p[^>]*>", first)[1:]]
    assert all(texts) and float(texts[4]) == pytest.approx(1, abs=0.03), "noise alone is between the two runs"


def test_another_target_or_method_is_no_baseline():
    given = {"backend": "cuda", "evidence": "executed", "timing_method": "events", "timing_quality": "ok"}
    now = row(0, **given, time_us_p50=10.0, time_us_p20=9.9, time_us_p80=10.1)
    for other, ratio in (({}, "0.50"), ({"target": "cuda:other"}, ""), ({"timing_method": "host"}, "")):
        found = values(now, False, others([now], [{**now, "time_us_p50": 20.0, **other}]))
        assert (found["baseline"].text if "baseline" in found else "") == ratio


def test_no_two_elements_have_one_id(html, wide):
    """Anchors of findings, of infrastructure failures, of cells, and of radio buttons are of one page."""
    for page in (html, wide, run_page(interrupted_run(120, 70), LINKS)):
        ids = Counter(a["id"] for _, a in Page(page).elements if "id" in a)
        assert [i for i, n in ids.items() if n > 1] == []


def test_tabs_count_the_failures_behind_them(html):
    labels = re.findall(r'<label for="h1-\d">(.*?)</label>', html)
    assert labels == ["bf16 <em>CE8</em>", "fp16 <em>≠8 ∞4</em>", "fp32 <em>CE8</em>"]


def test_html_is_closed(html):
    html = re.sub(r"<td id=.*", "", html)  # the paragraphs in cells have no end tags
    for tag in ("div", "section", "article", "table", "details", "span", "svg", "p", "pre", "a", "em", "code", "dl"):
        assert len(re.findall(rf"<{tag}[\s>]", html)) == html.count(f"</{tag}>"), tag


def test_without_scripts_nothing_is_out_of_reach(html, page):
    """Only tabs hide anything, and a tab is a radio button that works without script."""
    style = html[html.index("<style>") : html.index("</style>")]
    hiding = [rule.rsplit("}", 1)[-1].split("{")[0] for rule in re.findall(r"[^{}]+\{[^{}]*display:none[^{}]*", style)]
    on_paper = "nav,.tabs>label,.picker,.cmdbox button,.tip"  # what can only be pressed
    assert {h.strip() for h in hiding} == {".pane", ".heat p", ".tip", on_paper}
    assert not any("hidden" in a or "display:none" in a.get("style", "") for _, a in page.elements)
    groups = Counter(a["name"] for tag, a in page.elements if tag == "input")
    checked = Counter(a["name"] for tag, a in page.elements if tag == "input" and "checked" in a)
    assert set(groups) == set(checked) and set(checked.values()) == {1}
    contents = groups.pop("content")
    assert contents == len(re.findall(r"<label for=.show\d", html)) == 4 <= len(CONTENTS)
    for i in range(1, len(CONTENTS) + 1):
        assert re.search(rf"#show{i}:checked~.blocks .heat p:nth-of-type\({i}\)[^}}]*{{display:block}}", style)
    assert sum(groups.values()) == sum(1 for _, a in page.elements if a.get("class") == "pane")
    assert max(groups.values()) <= 10, "farm.css shows at most ten panes"


def test_hostile_text_is_only_text(html, page):
    assert HOSTILE in page.shown
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
    assert "run-judged" in Page(html).ids and HOSTILE not in html
    assert "run-judged" not in Page(run_page(fake_run(rows_of_run(50)), LINKS)).ids


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
    verdict = run_verdict.verdict(run)
    assert (verdict.id, verdict.pending, verdict.planned) == ("interrupted", 50, 120)
    assert "interrupted" in other.ids and wording.sentence(verdict) in other.shown
    assert sum(text == "?" for text in other.cells.values()) == 50
    assert len(other.cells) == 120


@pytest.mark.parametrize(
    ("fault", "id", "facts"),
    [
        (lambda r: r.rows.pop(), "report-sum-differs", "119 120"),
        (lambda r: r.rows.append(dict(r.rows[0])), "report-duplicate-cell", "1 cuda/rms_norm/farm/auto/"),
        (lambda r: r.rows[0].update(status="maybe"), "report-unknown-status", "1 maybe"),
        (lambda r: r.head.update(verdict="passed"), "report-verdict-differs", "`passed` `findings`"),
        (lambda r: r.head.update(schema=99), "report-newer-schema", f"99 {queries.SCHEMA}"),
        (lambda r: r.head["counts"].update(passed=1), "report-counts-differ", "run.json cells.parquet"),
    ],
)
def test_a_run_that_contradicts_itself_is_marked(fault, id, facts):
    rows = rows_of_run(120)
    rows[1].update(status="crashed", reason="x", fault_owner="kernel")
    run = fake_run(rows, planned=120)
    assert Page(run_page(run, LINKS)).alerts == []
    fault(run)
    (text,) = [w for w in run_verdict.warnings(run) if w.id == id]
    assert [fact for fact in facts.split() if fact not in text] == []
    page = Page(run_page(run, LINKS))
    assert id in page.alerts and text in page.shown


def test_keys_have_their_glyph_before_the_word_and_no_empty_column():
    rows = [row(0, evidence="interpreted"), row(1, status="skipped"), row(2, status="lost")]
    page = Page(run_page(fake_run(rows), LINKS))
    assert "3 planned = 1 passed · 1 skipped ? 1 lost" in page.shown
    assert "share-of-roof" not in page.ids
    timed = row(0, evidence="executed", backend="cuda", time_us_p50=9.0, timing_quality="ok", bandwidth_gbps=5.0)
    assert "share-of-roof" not in Page(run_page(fake_run([timed]), LINKS)).ids
    assert "share-of-roof" in Page(run_page(fake_run([{**timed, "share_of_roof": 0.5}]), LINKS)).ids


def test_the_card_of_an_interrupted_run_is_not_green():
    html = run_page(interrupted_run(120, 4), LINKS)
    card = Page(html.partition('<section id="cards"')[2].partition("</section>")[0]).shown
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
    assert "SIGSEGV <here>" in other.shown
    assert "do not show" not in other.shown


def test_the_list_of_runs(run, page):
    lines = [run_line(r.head, r.id, lambda r=r: r) for r in (run, interrupted_run())]
    html = runs_page(lines, LINKS)
    shown = Page(html).shown
    assert shown.index("20260802-030000-dead") < shown.index(run.id), "newest first"
    assert re.findall(r'class="tag v-(\w+)"', html) == ["interrupted", "farm_fault"] and "2,300 passed" in shown
    assert Page(runs_page([], LINKS)).ids == ["no-runs"]


@pytest.mark.parametrize("made", ["run", "runs", "evidence"])
def test_every_page_explains_its_words(run, made):
    pages = {"run": run_page(run, LINKS), "runs": runs_page([], LINKS), "evidence": evidence_page({}, LINKS)}
    block = pages[made].partition('<section id="words"')[2].partition(">")[2].partition("</section>")[0]
    assert block.startswith("<details><summary>"), "folded"
    listed = re.findall(r"<dt>(.*?)</dt><dd>", block)
    assert 0 < len(listed) == block.count("<dd>") < len(glossary.TERMS) and "`" not in block
    text = Page(pages[made].partition('<section id="words"')[0]).shown.lower()
    for entry in listed:
        words = [w.strip() for w in re.sub(r"\(.*?\)", "", entry).lower().split(",")]
        assert any(word[:-1] in text for word in words), f"{entry} is explained and not used"


@pytest.mark.parametrize("made", ["its gate 0.004; worst element [4, 40]", "gate 4", "its gate inf"])
def test_a_stored_reason_is_shown_in_todays_words(made: str) -> None:
    """Older runs say gate; an input of that name, or a gate without a number, is another thing."""
    shown = clip(f"y.rel_l2 is 0.01, {made}")
    assert "gate" not in shown and shown.startswith("y.rel_l2 is 0.01, tolerance ")
    assert current("the input gate is missing, gate and up") == "the input gate is missing, gate and up"


def test_only_words_that_a_text_uses_are_explained() -> None:
    text = "The CELLS of 3 nodes, their provider's\nmatrices, never  written; <data-t>"
    assert list(glossary.used(text)) == ["provider", "matrix", "cell", "device, node", "never written"]
    assert not glossary.used("") and not glossary.used("cellar modern")


def test_the_glossary_is_the_documents() -> None:
    document = Path(__file__).parents[2] / "docs" / "glossary.md"
    text = document.read_text(encoding="utf-8").split("\n## ")[0]
    table = re.findall(r"^\| (.+?) \| (.+) \|$", text, re.M)
    assert dict(table[1:]) == glossary.TERMS and table[0] == ("word", "meaning")
