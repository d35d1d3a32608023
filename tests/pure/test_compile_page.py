"""The page, verdict and counts of a compiled run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from compile_rows import buffered, built, kernel
from synthetic_runs import FakeRun, counts_of, row, rows_of_run

from farm.cli import progress
from farm.dashboards import builds, heat
from farm.dashboards.pages import Links, run_page
from farm.errors import id_of
from farm.report import cards, findings, run_verdict
from farm.store.results import place, verdict

LINKS = Links(None, lambda run_id: run_id, lambda name: None)
SPILLS = {"spill_store_bytes": 1132, "spill_load_bytes": 1080, "stack_bytes": 1136, "registers": 255, "occupancy": 0.25}


def rows() -> list[dict[str, Any]]:
    return [
        built(0),
        built(
            1,
            operation="backward",
            kernels=[kernel(), kernel("dx", "backward", registers=98), kernel("dw", "backward")],
        ),
        built(2, mode="row_packed", status="unsupported", reason="too wide", kernels=[]),
        built(3, hidden=32768, kernels=[kernel(hash="wide", **SPILLS)], flags='["norm spills 1,132 bytes"]'),
        built(4, "sm_100", status="compile_error", reason="norm spills", kernels=[kernel(**SPILLS)], log="logs/4.txt"),
        built(5, "ascend910b", kernels=[buffered()]),
        built(
            6,
            "ascend910b",
            hidden=32768,
            status="compile_error",
            reason="norm needs 327,712 bytes",
            kernels=[buffered(hash="over", ub_bytes=None, ub_overflow_bytes=327_712)],
        ),
        built(7, "sm_90", mode="static_persistent", status="skipped", reason="by a rule", kernels=[], evidence=""),
    ]


def fake(found: list[dict[str, Any]] | None = None, **head: Any) -> FakeRun:
    found = rows() if found is None else found
    full = {
        "schema": 2,
        "kind": "compile",
        "run_id": "c",
        "created": "2026-11-21T10:00:00Z",
        "planned": len(found),
        "matrices": [{"name": "rms_norm", "path": "matrices/rms_norm.yaml", "sha256": "0"}],
        "argv": [],
        "command": "farm compile matrices/rms_norm.yaml --target sm_90,sm_100,ascend910b",
        "counts": counts_of(found),
        "verdict": "findings",
        "backends": {},
        "revision": {},
        **head,
    }
    return FakeRun("c", full, True, found)


def spots(target: str) -> dict[int, builds.BuildSpot]:
    tables = builds.tables(rows(), {})
    return {i: s for (_, t, _), panes in tables.items() if t == target for pane in panes for i, s in pane.spots.items()}


def test_every_row_is_in_exactly_one_spot_and_in_no_heat_map() -> None:
    assert sorted([*spots("sm_90"), *spots("sm_100"), *spots("ascend910b")]) == list(range(8))
    assert heat.heats(rows(), {}) == {}
    ordinary = rows_of_run(50)
    assert builds.tables(ordinary, {}) == {} and heat.heats(ordinary, {}) != {}


def test_a_spot_shows_the_resources_of_its_kernel() -> None:
    spot = spots("sm_90")[0]
    assert (spot.main, spot.side, spot.below, spot.level) == ("40", "75 %", "32 B smem · reg", 0.75)
    facts = (
        "norm (forward)",
        "40 reg",
        "8 warps",
        "32 B smem",
        "6 blocks",
        "75 % (registers)",
        "4×128",
        "2×128",
        "2,560 B",
    )
    assert [fact for fact in facts if fact not in spot.tip] == []


def test_a_backward_shows_its_own_worst_kernel_and_the_tip_has_all() -> None:
    spot = spots("sm_90")[1]
    assert (spot.main, spot.side) == ("98", "75 % +1")
    assert [line.split(" ")[0] for line in spot.tip.splitlines()] == ["norm", "dx", "dw"]


def test_a_spill_is_emphasised() -> None:
    spot = spots("sm_90")[3]
    assert (spot.kind, spot.trouble) == ("occupancy", "spills 1.1 KiB")
    assert "1,132 bytes" in spot.tip and "1,080" in spot.tip


def test_a_unified_buffer_is_shown_by_its_share() -> None:
    spot = spots("ascend910b")[5]
    assert (spot.kind, spot.main, spot.side, spot.below) == ("buffer", "50 %", "14 buf", "8 multi · 19 sync")
    over = spots("ascend910b")[6]
    assert (over.kind, over.status) == ("status", "compile_error")
    assert "327,712 of 196,608 B UB" in over.tip


def test_summaries_count_kernels_once_and_targets_apart() -> None:
    twice = [built(0), built(1), built(2, hidden=32768, kernels=[kernel(hash="wide", **SPILLS)])]
    found = builds.summary(twice)
    assert (found.kernels, found.spilling, found.most, found.least_occupancy) == (2, 1, "255 reg", 0.25)
    assert builds.summary([built(0, "ascend910b", [buffered()])]).most == "50 % UB"
    assert builds.summary([]) == builds.BuildSummary(0, 0, "", None)


def test_remarks_have_a_place() -> None:
    (remark,) = builds.remarks(rows())
    assert (remark.target, remark.cells, remark.text) == ("sm_90", 1, "norm spills 1,132 bytes")
    assert remark.where == "rms_norm · farm/auto · forward · fp32 · 4096x32768"


def test_cards_are_one_per_target_and_never_mix_evidence() -> None:
    made = {c.name: c for c in cards.cards(fake())}
    assert list(made) == ["sm_90", "sm_100", "ascend910b"]
    assert made["sm_90"].counts == {"built": 3, "unsupported": 1}
    assert made["sm_90"].not_run == {"skipped": 1}
    assert made["sm_100"].counts == {"compile_error": 1} and made["sm_100"].not_run == {}
    assert {c.evidence for c in made.values()} == {"compiled"}
    assert [id_of(d) for d in made["sm_90"].devices] == ["report-compiled-only"]


def test_the_verdict_is_by_target() -> None:
    one = [built(0), built(1, "sm_100", status="unsupported", reason="no", kernels=[])]
    assert [place(r) for r in one] == ["cuda@sm_90", "cuda@sm_100"]
    assert verdict(one) == ("inconclusive", 4)
    assert verdict(one[:1]) == ("passed", 0)
    shown = run_verdict.verdict(fake(one))
    assert (shown.id, shown.unsupported) == ("nothing-supported", ("farm on cuda@sm_100",))
    shown = run_verdict.verdict(fake(one[:1]))
    assert (shown.id, shown.passed, shown.rest) == ("all-compiled", {"compiled": 1}, {})
    assert place(row(0)) == "cpu"


def test_the_last_lines_of_a_compilation_are_per_target() -> None:
    lines = progress.summary(rows(), 3.0)
    (compiled,) = [line for line in lines if "cuda@sm_90" in line and "compiled" in line]
    assert "3 built" in compiled and "1 unsupported" in compiled
    assert any("cuda@sm_90" in line and "1 skipped" in line for line in lines)
    assert lines[-1].count("8") == 2 and "3 s" in lines[-1]


def test_a_finding_is_repeated_by_a_compilation() -> None:
    groups = {g.target: g for g in findings.findings(fake())}
    assert set(groups) == {"sm_100", "ascend910b"}
    command = groups["sm_100"].command
    assert command.startswith("farm compile matrices/rms_norm.yaml --target sm_100 --select ")
    assert "--backend" not in command


def test_the_page_has_it_all() -> None:
    page = run_page(fake(), LINKS)
    assert page.count('<table class="heat builds"') == 3
    assert "<b>40</b> 75 %" in page and "<strong>spills 1.1 KiB</strong>" in page
    assert '<section id="remarks">' in page
    assert re.search(r"<h2>sm_100 <span", page)
    assert 'role="alert"' not in page
    assert sorted(int(n) for n in re.findall(r"<td id=c(\d+)", page)) == list(range(8))


def test_hostile_text_is_shown_and_not_obeyed() -> None:
    evil = '<script>alert("x")</script>'
    page = run_page(fake([built(0, kernels=[kernel(evil)], flags=json.dumps([evil]))], verdict="passed"), LINKS)
    assert evil not in page and "&lt;script&gt;" in page


@pytest.mark.parametrize("resources", ["", "[]", "{}", "not json", None])
def test_a_row_without_a_report_takes_no_page_down(resources: str | None) -> None:
    broken = built(0)
    broken["resources"] = resources
    assert "class=s-built" in run_page(fake([broken], verdict="passed"), LINKS)
