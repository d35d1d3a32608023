"""A clock that lies: through the child, the journal, the rows, the page, the exports and the terminal, no number that
it gave is shown as a speed.  And a process that has profiled is asked for nothing else."""

from __future__ import annotations

import html
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from farm_process import FarmRun

from farm.cli import main
from farm.report.format import sig
from farm.store import Store

#: hidden size -> what the fake's clock says.  64 rows in float32 are 512 bytes a column, read and written.
LIES: dict[int, dict[str, Any]] = {
    1000: {"time_us": 0.217, "cold": True},  # 2,373 GB/s on a part of 1,200
    1008: {"time_us": 0.0219},  # 23,709 GB/s from a cache
    1016: {"time_us": -31.7},
    1024: {"time_us": 0.0},
    1032: {"time_us": 43.7, "outside_us": 917.3},  # the device worked on when the timed stream had finished
}
HOST_US = 77.31
HONEST = {"time_us": 29.3, "noise": 0.0, "host_us": 61.7, "cold": True}
#: Columns that are a time of the timed calls, or made from one.
SPEEDS = (
    "time_us_p20",
    "time_us_p50",
    "time_us_p80",
    "time_rel_mad",
    "host_us_p50",
    "bandwidth_gbps",
    "tflops",
    "share_of_roof",
)
#: What a speed looks like in words, or as a content of a heat map's cell.
WORDS = re.compile(r"\d\s*(?:µs|us\b|GB/s|TFLOP/s|(?:%|percent) of roof)|<p(?: class=[a-z]\w*)?>\d")


def matrix(liars: bool) -> str:
    """Every liar at a hidden size of its own, as a subject; or the same cells by an honest clock."""
    lies = [{"when": {"hidden": h}, "noise": 0.0, "host_us": HOST_US, **lie} for h, lie in LIES.items()]
    data = {
        "name": "clocks",
        "op": "rms_norm",
        "axes": {"shape": [{"rows": 64, "hidden": [*LIES]}], "dtype": "float32"},
        "providers": ["farm"],
        "sim": {"default": HONEST, "rules": lies if liars else []},
    }
    return json.dumps(data)


def shown(folder: Path, text: str) -> dict[str, str]:
    """Where a reader meets a run -> the words there."""
    run = FarmRun(folder, text)
    try:
        assert run.start().wait() == 0, run.said()
    finally:
        run.end()
    out = {"terminal": run.said()}
    (page,) = [p for p in (run.store.path / "pages").rglob("*.html") if run.run_id in str(p)]
    body = re.sub(r"<style.*?</style>|<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    out["page"] = html.unescape(re.sub(r"<[^>]*?(?:title|aria-label|data-[a-z]+)=\"([^\"]*)\"[^>]*>", r" \1 ", body))
    for name in ("markdown", "junit"):
        to = folder / name
        assert main(["export", name, run.run_id, "--to", str(to), "--out", str(run.store.path)]) == 0
        out[name] = to.read_text(encoding="utf-8")
    out["junit"] = without_wall_time(out["junit"], run.rows())
    return out


def without_wall_time(text: str, rows: list[dict[str, Any]]) -> str:
    """JUnit's `time` is how long a test case took, in seconds: any three digits may stand there, a lie's too.  It is
    taken away here where it is that, and nothing else."""
    took = {row["cell_id"]: f"{row['seconds']:.3f}" for row in rows}
    for suite in (root := Tree.fromstring(text.encode())).iter():
        cases = [*suite.iter("testcase")]
        if cases and "time" in suite.attrib:
            assert suite.attrib.pop("time") == f"{sum(float(took[c.attrib['name']]) for c in cases):.3f}"
    return Tree.tostring(root, encoding="unicode")


@pytest.fixture(scope="module")
def lied(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("lied")
    return shown(folder, matrix(True)), Store(folder / "store").run("last").rows


def numbers_of(hidden: int, time_us: float) -> set[str]:
    """A cell's speeds as pages write them, those of three digits or more: shorter ones stand in any text."""
    speed = 512 * hidden / abs(time_us) / 1e3 if time_us else 0.0
    written = {sig(abs(time_us)), f"{speed:.0f}", f"{speed:,.0f}", sig(speed)}
    return {n for n in written if len(re.sub(r"\D", "", n).strip("0")) >= 3}


def test_no_row_has_a_speed(lied: Any) -> None:
    _, rows = lied
    assert {json.loads(r["dims"])["hidden"] for r in rows} == set(LIES)
    for row in rows:
        assert (row["status"], row["timing_quality"]) == ("passed", "impossible"), row["cell_id"]
        assert {c: row[c] for c in SPEEDS} == dict.fromkeys(SPEEDS), row["cell_id"]
        assert row["samples"] == 20  # they are kept, in samples.parquet


@pytest.mark.parametrize("where", ["terminal", "page", "markdown", "junit"])
def test_no_reader_meets_a_speed(lied: Any, where: str) -> None:
    text = lied[0][where]
    assert WORDS.findall(text) == [], text
    for hidden, lie in LIES.items():
        for number in {*numbers_of(hidden, lie["time_us"]), sig(HOST_US)}:
            assert not re.search(rf"(?<![\w.,/]){re.escape(number)}(?![\w,]|\.\d)", text), (where, hidden, number)


def test_the_page_names_what_is_impossible(lied: Any) -> None:
    page = lied[0]["page"]
    assert "Impossible timings" in page and "5 cells" in page
    assert "5 timings are impossible" in lied[0]["markdown"]


def test_an_honest_clock_is_shown_in_the_same_places(tmp_path: Path) -> None:
    """Else the tests above could not fail."""
    said = shown(tmp_path, matrix(False))
    row = Store(tmp_path / "store").run("last").rows[0]
    assert row["timing_quality"] == "ok" and row["time_us_p50"] == 29.3 and row["host_us_p50"] == 61.7
    assert WORDS.search(said["page"]) and WORDS.search(said["markdown"])
    hidden = json.loads(row["dims"])["hidden"]
    assert any(number in said["page"] for number in numbers_of(hidden, 29.3))


def test_a_process_that_has_profiled_is_asked_for_nothing_else(tmp_path: Path) -> None:
    """The fake refuses, as a capture would fail; the actor starts a fresh child instead."""
    data = json.loads(matrix(False))
    data["axes"]["shape"] = [{"rows": 3, "hidden": [*range(100, 130)]}]
    data["timing"] = [{"method": "profiler"}, {"method": "host"}, {"method": "events"}]
    run = FarmRun(tmp_path, json.dumps(data), ("--devices", "1"))
    try:
        assert run.start().wait() == 0, run.said()
    finally:
        run.end()
    rows = run.rows()
    assert {(r["status"], r["reason"]) for r in rows} == {("passed", "")}
    methods = {r["index"]: r["timing_method"] for r in rows}
    order = [methods[e["cell"]] for e in run.journal("started")]
    assert {*order} == {"events", "host", "profiler"} and len(order) == 90
    assert any(a == "profiler" != b for a, b in pairwise(order))  # or nothing was asked of the actor
    run.assert_nothing_left()
