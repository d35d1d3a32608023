"""The roofs on the run page: the curve of the device that was calibrated, the run's cells below it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from calibrations import MIB, record
from synthetic_runs import HOSTILE, FakeRun, fake_run, rows_of_run

from farm.calibration.report import remarks, short
from farm.dashboards.pages import Links, run_page
from farm.dashboards.roofs import chart, roofs
from farm.errors import id_of
from farm.timing.roof import parse

LINKS = Links("index.html", lambda run_id: f"run-{run_id}.html", lambda name: name)


def calibrated(own: bool = True, stale: bool = False, **given: Any) -> FakeRun:
    """The made-up run, its cuda device compared with the made-up calibration."""
    kept = short(record(**given))
    run = fake_run(rows_of_run(1500))
    (device,) = run.head["backends"]["cuda"]["devices"]
    device.update(name="cuda:0", calibration={"id": kept["id"], "made": kept["made"], "own": own, "stale": stale})
    run.head["calibrations"] = {kept["id"]: kept}
    return run


def test_what_was_left_out_is_one_line_per_reason() -> None:
    skipped = [{"bytes": 4 << 30, "why": "one"}, {"bytes": 2 << 20, "why": "two"}, {"bytes": 8 << 30, "why": "one"}]
    notes = ["GEMM tf32: unknown", "planted", "GEMM int8: unknown"]
    large, small, gemm, note = remarks({"skipped": skipped, "notes": notes})
    assert "4 GiB, 8 GiB" in large and large.endswith("one")
    assert "2 MiB" in small and small.endswith("two")
    assert "tf32, int8" in gemm and gemm.endswith("unknown") and note == "planted"


def test_a_run_without_a_calibration_has_no_roof() -> None:
    run = fake_run(rows_of_run(100))
    assert roofs(run) == [] and 'id="roofs"' not in run_page(run, LINKS)


def test_the_curve_its_table_and_the_device_are_shown() -> None:
    run = calibrated()
    (note,) = roofs(run)
    assert note.backend == "cuda" and note.evidence == "executed" and note.device == "NVIDIA H200 GPU-1"
    assert note.points[0] == ("1 MiB", "2.00", "524", "once-512x4") and len(note.points) == 3
    assert note.gemm == (("bfloat16", "733", "8192³"),) and note.floors[0] == ("rotating_graph", "1.10")
    assert "1.2%" in note.drift
    assert note.remarks == tuple(remarks(short(record()))) and len(note.remarks) == 2
    page = run_page(run, LINKS)
    section = page.split('<section id="roofs">')[1].split("</section>")[0]
    assert 'role="img"' in section and "aria-label=" in section and "<table" in section
    assert "rotating_graph version 2" in section and 'href="#roofs"' in page


def test_dots_are_the_cells_that_have_a_share_and_no_impossible_one() -> None:
    run = calibrated()
    for r in run.rows:
        if r["timing_quality"] == "impossible":
            r["share_of_roof"] = 3.0  # a row that a sick run left behind
    shown = [r for r in run.rows if r["backend"] == "cuda" and r["share_of_roof"] and r["status"] == "passed"]
    (note,) = roofs(run)
    want = [r for r in shown if r["timing_quality"] != "impossible"]
    assert note.dots == len(want) < len(shown) and f"{len(want):,}" in note.chart
    assert 'class="ours"' in note.chart and 'class="theirs"' in note.chart
    assert "987654" not in note.chart
    run.head["backends"]["cuda"]["devices"][0]["name"] = "another"
    assert roofs(run)[0].dots == 0


def test_a_shared_roof_and_an_old_one_are_marked() -> None:
    run = calibrated(own=False, stale=True)
    (note,) = roofs(run)
    shared, stale, *_ = note.remarks
    assert id_of(shared) == "roof-shared" and "NVIDIA H200 GPU-1" in shared and "cuda:0" in shared
    assert id_of(stale) == "roof-stale" and "30 days" in stale
    assert 'data-id="roof-shared"' in run_page(run, LINKS)


def test_a_damaged_calibration_takes_no_page_down() -> None:
    for planted in (
        {"curve": []},
        {"schema": 9},
        {"curve": [{"bytes": 1, "us": float("inf")}]},
        {"drift": {"us": ["x"], "bytes": None, "spread": "y"}},
        {"skipped": [3]},
        {"notes": 5},
    ):
        assert roofs(calibrated(**planted)) == []
    run = calibrated()
    run.head["calibrations"] = {}
    assert roofs(run) == []


def test_what_others_wrote_is_escaped() -> None:
    run = calibrated(device=HOSTILE, notes=[HOSTILE])
    assert "<script>alert" not in run_page(run, LINKS)


def test_every_point_lies_inside_of_the_chart() -> None:
    curve = parse(record()).curve
    drawn = chart(curve, [(MIB // 4, 10.0, True), (1 << 34, 9000.0, False)], "x")
    xs = [float(a) for a in re.findall(r'cx="([\d.]+)"', drawn)]
    ys = [float(a) for a in re.findall(r'cy="([\d.]+)"', drawn)]
    path = re.search(r'class="roof" d="M([^"]+)"', drawn)
    assert path
    points = [tuple(map(float, p.split())) for p in path[1].split("L")]
    assert len(points) == len(curve)
    assert all(54 <= x <= 646 for x in [*xs, *(p[0] for p in points)])
    assert all(20 <= y <= 266 for y in [*ys, *(p[1] for p in points)])
    assert [p[1] for p in points] == sorted((p[1] for p in points), reverse=True)  # faster is higher
    assert chart(curve[:1], [], "x")  # one point alone


@pytest.mark.parametrize("gbps", [0.5, 99.0, 4331.0])
def test_the_axis_reaches_above_every_value(gbps: float) -> None:
    from farm.dashboards.roofs import _ceiling

    assert gbps <= _ceiling(gbps) <= 2 * gbps * 1.001
