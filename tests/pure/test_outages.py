"""What fails that is no kernel's, on the pages of thirty nights: devices with gaps, quarantined ones, lost cells,
nights without a run, a silent backend; and charts along an axis of time."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta, timezone
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
import night_store

from farm.dashboards import night_pages, trends, views
from farm.dashboards.pages import Links
from farm.dashboards.time_axis import TimeAxis
from farm.report.ranked import rankings
from farm.store import Store, device_health, index

LINKS = Links(None, lambda run_id: None, lambda name: None)
ROCM, CUDA = night_store.TARGETS["rocm"], night_store.TARGETS["cuda"]


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> views.Newest:
    folder = tmp_path_factory.mktemp("outages")
    night_store.write_outages(folder)
    found = views.newest(index.opened(Store(folder)))
    assert found is not None
    return found


def text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]+>", " ", html, flags=re.S)).split())


def test_a_quarantined_device_stays_in_the_table_with_its_reason(newest: views.Newest) -> None:
    devices = {d.name: d for d in newest.devices(ROCM)}
    sick = devices["rocm:1"]
    assert list(devices) == ["rocm:0", "rocm:2", "rocm:3", "rocm:1"] and sick.absent and sick.cells == 0
    assert sick.sick == "rocm:1 quarantined, no cell since 2026-10-13"
    assert sick.why == (f"quarantined in the newest night: {night_store.QUARANTINED}",)
    (gap,) = sick.gaps
    assert gap.text == f"2026-10-14 to 2026-10-17 (4 nights): ran no cell; quarantined ({night_store.QUARANTINED})"
    page = text(night_pages.backend_page(newest, ROCM, LINKS, lambda rows: "again"))
    assert "rocm:1 quarantined, no cell since 2026-10-13" in page and f"newest night: {night_store.QUARANTINED}" in page
    front = night_pages.night(newest, LINKS, lambda rows: "again")
    assert "2 devices to look at" in front["sentence"] and front["bad"]


def test_every_red_value_and_every_gap_of_a_device_says_why(newest: views.Newest) -> None:
    devices = {d.name: d for d in newest.devices(CUDA)}
    assert devices["cuda:0"].why == () and devices["cuda:0"].gaps == ()
    assert [g.text for g in devices["cuda:1"].gaps] == [
        "2026-10-02: 0 of 32 cells with a time that counts, 5 needed: 32 infra error"
    ]
    lost, odd = devices["cuda:2"], devices["cuda:3"]
    assert (lost.failed, lost.faults, lost.why) == (11, 11, (f"11 infra error: {night_store.FELL}",))
    assert odd.odd and len(odd.why) == 2 and "clock 1610 MHz, its siblings 1755" in odd.why[0]
    assert odd.why[1].endswith("throttled: their times do not count")
    assert newest.devices(ROCM)[2].why == ("5 lost: the node did not answer for 300 s",)


def test_lost_cells_are_in_the_bars_apart_from_failing_ones(newest: views.Newest) -> None:
    found = newest.nights
    assert found.faulty("cuda")[-1] == 11 and found.failing("cuda")[-1] == 0 and found.failing("rocm")[-1] == 2
    assert [n for n in found.faulty("rocm") if n] == [5]
    front = night_pages.night(newest, LINKS, lambda rows: "again")
    for card, lost in zip(front["cards"], (11, 5), strict=True):
        assert f"2026-10-17: {lost} cells without a result (infrastructure)" in card["line"]
        assert f"{lost} cells without a result (infrastructure)" in [words for words, _, _ in card["more"]]
    assert "2026-10-02: 32 cells without a result (infrastructure)" in front["cards"][0]["line"]
    data = night_pages.night_json(newest)["backends"]["rocm"]
    assert data["infrastructure_failures_per_night"][-1] == 5 and data["failing"][-1] == 2


def test_nights_without_a_run_are_gaps_of_the_charts(newest: views.Newest) -> None:
    front = night_pages.night(newest, LINKS, lambda rows: "again")
    assert front["nights"] == "27 nights, none between 2026-10-04 and 2026-10-07, 2026-09-28 and 2026-09-30"
    line = front["cards"][0]["line"]
    assert re.search(r'aria-label="27 nights with 2 gaps', line)
    assert len(re.findall("M", re.search(r'class="pace" d="([^"]+)', line)[1])) == 3, "the curve is interrupted"  # type: ignore[index]
    assert re.findall(r">(\d\d-\d\d)</text>", line) == ["09-19", "09-26", "10-03", "10-10", "10-17"]


def test_where_auto_is_beaten_says_since_when_and_repeats_both_modes(newest: views.Newest) -> None:
    (beaten,) = [r for r in rankings([r for r in newest.rows if r["target"] == CUDA], nights=newest.nights) if r.short]
    assert beaten.count == 8 and {e.since for e in beaten.entries} == {"since 2026-10-10"}
    assert {e.beside[0]["mode"] for e in beaten.entries} == {"row_packed"}
    asked: list[set[str]] = []
    night_pages.backend_page(newest, CUDA, LINKS, lambda rows: asked.append({r["mode"] for r in rows}) or "again")  # type: ignore[func-returns-value]
    assert asked.count({"auto", "row_packed"}) >= 9, "each cell, and all of them"
    since = next(r for r in rankings([r for r in newest.rows if r["target"] == CUDA]) if r.short).entries[0].since
    assert since == "", "a run alone knows no nights"


def test_what_is_noted_of_health() -> None:
    lines = [
        {"event": "health", "device": "a", "time": 1, "state": "suspect", "reason": "x" * 999},
        {"event": "health", "device": "a", "time": 2, "state": "quarantined", "reason": "failed"},
        {"event": "retired", "device": "a", "time": 3, "reason": "failed", "drained": False},
        {"event": "device_down", "device": "b", "time": 4, "reason": "restarts", "final": False},
        {"event": "device_down", "device": "b", "time": 5, "reason": "in use", "final": True, "busy": True},
        {"event": "device_down", "device": "b", "time": 6, "reason": "not there", "final": True},
        {"event": "health", "device": "a", "time": 7, "state": "ready", "reason": "passed"},
        {"event": "retired", "device": "a", "time": 8, "reason": "no work", "drained": True},
        {"event": "health", "device": "a", "state": "dancing"},
    ]
    noted = device_health.kept(filter(None, map(device_health.of_line, lines)))
    assert [(e["device"], e["state"]) for e in noted] == [
        *(("a", "suspect"), ("a", "quarantined"), ("b", "gone"), ("a", "ready"), ("a", "drained"))
    ]
    assert max(len(e["reason"]) for e in noted) == device_health.REASON
    assert device_health.sound(noted) == noted and len(device_health.kept(noted * 999)) == device_health.KEPT
    for hostile in (None, {}, "x", [None, 3, {"state": "dancing"}, {"device": 1}]):
        assert device_health.sound(hostile) == []


@given(st.lists(st.integers(0, 900), min_size=1, max_size=60, unique=True).map(sorted))
def test_a_night_stands_where_its_time_is(days: list[int]) -> None:
    """Positions are in proportion to time; ticks lie inside and have their date; bars of two nights do not overlap."""
    first = datetime(2025, 1, 1, 2, tzinfo=timezone.utc)
    created = [(first + timedelta(days=d)).isoformat() for d in days]
    axis = TimeAxis(created, 10, 310)
    x = [axis.x(i) for i in range(len(days))]
    assert x == sorted(x) and all(10 <= one <= 310 for one in x)
    span = days[-1] - days[0]
    if span:
        assert x == pytest.approx([10 + 300 * (d - days[0]) / span for d in days])
        assert all(b - a >= axis.bar() or axis.bar() == 1.5 for a, b in pairwise(x))
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 7 and ticks[-1][0] == pytest.approx(x[-1])
    for at, date in ticks if span else []:
        day = first + timedelta(days=days[0] + (at - 10) / 300 * span)
        assert day.strftime("%y-%m-%d").endswith(date) or span < 1
    assert len(axis.line([1.0] * len(days))) == len(days) + len(axis.gaps)


def test_an_axis_of_odd_times() -> None:
    assert TimeAxis([], 0, 9).ticks() == [] and TimeAxis(["", "2026-01-01"], 0, 9).ticks() == []
    assert [TimeAxis(["when", "then"], 0, 9).x(i) for i in range(2)] == [0, 9]
    same = TimeAxis(["2026-01-01T02:00:00", "2026-01-01T02:00:00+00:00"], 0, 10)
    assert [same.x(i) for i in range(2)] == [5, 5] and [t for _, t in same.ticks()] == ["01-01"]
    hours = TimeAxis(["2026-01-01T02:00", "2026-01-01T03:00", "2026-01-01T09:30"], 0, 10)
    assert [t for _, t in hours.ticks()] == ["02:00", "09:30"] and not hours.gaps
    assert trends.night_line([], [], []) and trends.nights(["2026-01-01"]) == "1 night"
