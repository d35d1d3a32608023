"""What the medians of benchmarks.timers say, on made-up times; its plans; its command line."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import agreement, cases, child, timers, timers_child
from benchmarks.agreement import allowed_us, compared, judged, repeated, robust_sd
from farm.child.timing import Bench, TimingResult
from farm.deadline import Deadline


def row(
    graph: float | None,
    profiler: float | None,
    events: float | None = None,
    kernels: float | None = 1.0,
    provider: str = "farm",
    case: str = "c",
) -> dict[str, Any]:
    us = {"rotating_graph": graph, "profiler": profiler, "events": events}
    return {"case": case, "provider": provider, "us": us, "half_width": {}, "kernels": kernels, "problems": {}}


def test_five_per_cent_or_two_microseconds_a_kernel() -> None:
    assert [allowed_us(100.0, 1), allowed_us(100.0, 3), allowed_us(100.0, None), allowed_us(10.0, 0)] == [5, 6, 5, 2]
    assert judged(row(105.0, 100.0))["within"]["rotating_graph"]
    assert not judged(row(105.1, 100.0))["within"]["rotating_graph"]
    assert judged(row(105.1, 100.0, kernels=3))["within"]["rotating_graph"]
    assert not judged(row(94.9, 100.0))["within"]["rotating_graph"]  # too fast is as wrong
    assert judged(row(7.9, 6.0))["within"]["rotating_graph"]
    assert judged(row(7.9, 6.0, events=11.0))["within"] == {"rotating_graph": True, "events": False}


@pytest.mark.parametrize(
    ("graph", "profiler", "counts"),
    [
        (5.0, 3.9, False),
        (5.0, 4.0, True),
        (2000.0, 2000.0, True),
        (2001.0, 2001.0, False),
        (None, 9.0, False),
        (9.0, None, False),
    ],
)
def test_what_counts(graph: float | None, profiler: float | None, counts: bool) -> None:
    assert judged(row(graph, profiler))["counts"] is counts


def test_what_is_missed_is_named() -> None:
    good = [row(20.5, 20.0, 26.0, case=f"c{i}", provider=p) for i in range(20) for p in ("farm", "torch")]
    found = compared(good)
    assert found["missed"] == []
    assert found["all"]["rotating_graph"] == {"of": 40, "within": 40, "median_ratio": 1.025, "worst_ratio": 1.025}
    assert found["providers"]["torch"]["events"] == {"of": 20, "within": 0, "median_ratio": 1.3, "worst_ratio": 1.3}
    assert compared(good[:39])["missed"] == ["39 cells in range of at least 40"]
    bad = compared([*good, row(30.0, 20.0, kernels=2, case="rms/8x8", provider="liger")])
    assert bad["missed"] == ["rms/8x8 liger: rotating_graph 30.00, profiler 20.00 us, 2 kernels"]
    assert "OUTSIDE" in agreement.text(bad) and "OUTSIDE" not in agreement.text(found)
    assert "rotating_graph 40 of 41" in agreement.text(bad)
    assert agreement.markdown(bad).count("\n| ") == 41


def test_the_robust_sd_is_that_of_a_normal_distribution() -> None:
    dice = random.Random(5)
    assert robust_sd([dice.gauss(100.0, 2.0) for _ in range(20_000)]) == pytest.approx(0.02, rel=0.03)
    assert robust_sd([10.0, 10.0, 10.0, 99.0]) == 0.0  # one outlier is not spread
    assert robust_sd([9.0, 10.0, 11.0]) == pytest.approx(0.14826)
    with pytest.raises(ValueError, match="at least two"):
        robust_sd([1.0])


def test_the_bar_between_processes() -> None:
    quiet = {f"q{i}": [10.0, 10.05, 9.95] * 4 for i in range(20)}
    found = repeated(quiet, 12)
    assert (found["counted"], found["missed"]) == (20, [])
    assert found["p90"] == pytest.approx(1.4826 * 0.005)
    loud = {**quiet, **{f"l{i}": [10.0, 10.5, 9.5] * 4 for i in range(4)}}
    assert repeated(loud, 12)["missed"] == ["the 90th percentile of the spread is 7.41 %, the bar is 1.2 %"]
    small = {**quiet, "tiny": [4.9, 9.9, 1.9] * 4, "cut short": [50.0, 80.0, 20.0] * 3}
    found = repeated(small, 12)  # under 5 us, and not in every process: shown, not counted
    assert (found["counted"], found["missed"], len(found["cells"])) == (20, [], 22)
    assert repeated(dict(list(quiet.items())[:19]), 12)["missed"] == ["19 cells from 5 us up of at least 20"]
    assert "90th percentile of the robust sd 0.74 %" in agreement.text(repeated(quiet, 12))


def test_nothing_measured_is_told_and_is_no_pass() -> None:
    assert compared([])["missed"] and repeated({}, 12)["missed"]
    agreement.text(compared([])), agreement.text(repeated({}, 12))


# plans


def test_enough_cells_are_planned_for_each_provider() -> None:
    per_provider = [c for op in cases.available_ops() for c in timers.planned(op)]
    assert len(per_provider) == len({c.id for c in per_provider}) >= 40
    assert len(timers.REPEATED) * 4 >= agreement.REPEAT_CELLS
    shapes = {(c.rows, c.hidden) for c in per_provider}
    assert (2048, 512) in shapes and (32768, 8192) in shapes
    assert {c.dtype for c in per_provider} == {"bfloat16", "float32"}


def test_the_profiler_comes_after_everything_that_captures() -> None:
    items = timers.phases(timers.planned("rms_norm"), "liger")
    order = [i["phase"] for i in items]
    assert order == sorted(order) and set(order) == {0, 1}
    for item in items:
        assert all(("profiler" in s) == (item["phase"] == 1) for s in item["subjects"])


def event(case: str, subject: str, **more: Any) -> dict[str, Any]:
    return {"event": "result", "case": case, "subject": subject, "status": "ok", **more}


def test_rows_join_what_the_policies_said() -> None:
    events = [
        event("a", "farm|rotating_graph", us=5.0, kernels=1.0),
        event("a", "farm|events", us=9.0, kernels=None),
        event("a", "farm|profiler", us=4.5, kernels=2.0),
        event("a", "torch|rotating_graph", us=7.0, kernels=3.0),
        {**event("a", "torch|profiler"), "status": "crashed", "reason": "why"},
        {**event("a", "quack|rotating_graph"), "status": "unsupported", "reason": "absent"},
    ]
    ours, torch = timers.rows_of(events)
    assert ours["us"] == {"rotating_graph": 5.0, "events": 9.0, "profiler": 4.5}
    assert (ours["kernels"], torch["kernels"]) == (2.0, 3.0)  # the profiler's count where it has one, else the graph's
    assert torch["problems"] == {"profiler": "crashed: why"}
    assert "profiler crashed: why" in agreement.text(compared([ours, torch]))


def test_an_impossible_time_is_no_median() -> None:
    (only,) = timers.rows_of([event("a", "farm|rotating_graph", us=None), event("a", "farm|profiler", us=5.0)])
    assert not judged(only)["counts"]


def test_the_report_holds_every_median(tmp_path: Path) -> None:
    found = repeated({"c farm": [10.0, 11.0]}, 2)
    timers.save(tmp_path, "repeat", found, [])
    assert json.loads((tmp_path / "repeat.json").read_text())["cells"][0]["medians"] == [10.0, 11.0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["repeat.json", "repeat.md", "repeat.txt"]


def fake_processes(monkeypatch: pytest.MonkeyPatch, takes_s: float, clock: list[float]) -> list[float]:
    """Each process takes so long by a clock of the test's own and reaches every cell where it may; gives what each was
    allowed."""
    allowed: list[float] = []

    def supervise(plan: dict[str, Any], seconds: float, **_: Any) -> list[dict[str, Any]]:
        allowed.append(seconds)
        clock[0] += min(takes_s, seconds)
        reached = plan["items"] if seconds >= takes_s else plan["items"][: len(plan["items"]) // 2]
        return [event(cases.case_of(i["case"]).id, s, us=10.0) for i in reached for s in i["subjects"]]

    monkeypatch.setattr(timers.processes, "supervise", supervise)
    monkeypatch.setattr(timers.time, "monotonic", lambda: clock[0])
    return allowed


def test_no_process_of_a_short_budget_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An even share of 120 s for twelve processes is less than a process takes, and less than one is started for: on
    the H200 the first three of twelve were never started, and no cell was measured by all."""
    clock = [0.0]
    allowed = fake_processes(monkeypatch, 9.0, clock)
    options = timers.parse(["--repeat", "12", "--providers", "farm", "torch", "--warm", "0", "--budget", "120"])
    found = timers.repeat(options, Deadline(120.0))
    assert len(allowed) == 12 and found["counted"] == 22 and found["missed"] == []
    assert allowed[0] == 120.0 and all(9.0 < a <= 30.0 for a in allowed[1:])
    clock[0] = 0.0
    short = timers.repeat(options, Deadline(60.0))
    assert len(allowed) == 12 + 6 and short["counted"] == 0
    assert "process 7 of 12: not started, the time is up" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--repeat", "1"], ["--repeat", "x"], ["--budget", "0"], ["--providers", "nobody"]])
def test_wrong_usage_is_one_sentence(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        timers.parse(argv)
    assert refused.value.code == 2
    assert f"argument {argv[0]}" in capsys.readouterr().err


# the measuring process, on a CPU with made-up policies


def process(monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[timers_child.Process, list[dict[str, Any]]]:
    """A process of two small cases by all three policies, and the list that its events go to."""
    times = {"rotating_graph": 5.0, "events": 9.0, "profiler": 4.5}

    def policy(method: str) -> Any:
        def timer(bench: Bench) -> TimingResult:
            assert bench.nodes is timers_child.graph_nodes
            time.sleep(0.02)
            return TimingResult(method, [times[method]] * 20, [50.0], bench.make().run(bench.function), kernels=2.0)

        return timer

    monkeypatch.setattr(timers_child, "POLICIES", {m: policy(m) for m in times})
    events: list[dict[str, Any]] = []
    of = [cases.Case("rms_norm", o, "float32", 6, 40) for o in cases.OPERATIONS]
    plan = {"items": timers.phases(of, "torch"), "until": time.time() + seconds, "policy": {}}
    device = child.Device(torch.device("cpu"), "a cpu", 4, 1 << 20)
    return timers_child.Process(plan, events.append, device), events


def test_one_process_measures_by_every_policy_the_profiler_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made, events = process(monkeypatch, 300.0)
    made.run()
    rows = timers.rows_of(events)
    assert [r["us"] for r in rows] == [{"rotating_graph": 5.0, "events": 9.0, "profiler": 4.5}] * 2
    assert {(r["provider"], r["kernels"]) for r in rows} == {("torch", 2.0)}
    order = [e["subject"] for e in events if e["event"] == "result"]
    assert [s.endswith("profiler") for s in order] == [False] * 4 + [True] * 2


def test_the_profiler_gets_its_share_of_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first policies did not reach in their part is left out by the profiler too."""
    made, events = process(monkeypatch, 300.0)
    monkeypatch.setattr(timers_child, "KEPT", 2.0)  # nothing is left for the first phase
    made.run()
    assert [e for e in events if e["event"] == "result"] == [] and len(made.left_out) == 2
    assert events[-1]["why"] == "done"
