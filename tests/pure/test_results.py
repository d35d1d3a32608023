"""Rows, counts and the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.cell import FARM_FAULTS, FINDINGS, Cell, Status, canonical_json
from farm.store.results import COLUMNS, counts, doubts, finish_row, planned_row, verdict

CELL = Cell(
    backend="sim",
    op="rms_norm",
    provider="farm",
    mode="auto",
    operation="forward",
    dtypes={"x": "bfloat16", "weight": "float32"},
    dims={"rows": 4, "hidden": 100},
    params={"eps": 1e-6, "offset": 0.0},
    index=7,
    matrix="m",
    cell_id="sim/x",
)
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


def measured(samples: list[float], *, peak: float | None = None, cold: bool = True, **timing: Any) -> dict[str, Any]:
    return {
        "facts": {"mode_resolved": "row_packed", "launch": {"kernels": []}, "flags": ["x"], "check_s": 0.5},
        "timing": {"method": "host", "samples_us": samples, "cold": cold, **timing},
        "work": {"bytes_read": 3_000_000, "bytes_written": 1_000_000, "operations": {"fp32": 2_000_000}},
        "peaks": (peak, None) if peak else None,
    }


def a_row(**more: Any) -> dict[str, Any]:
    return finish_row(CELL, status=Status.PASSED, reason="", owner="", attempt=1, evidence="executed", **more)


def test_a_planned_row_has_every_column_and_is_lost() -> None:
    row = planned_row(CELL)
    assert list(row) == list(COLUMNS)
    assert (row["status"], row["timing_quality"], row["evidence"]) == ("lost", "none", "")
    assert (row["dtype"], row["shape"]) == ("bfloat16", "4x100")
    assert list(json.loads(row["dims"])) == ["rows", "hidden"]  # the contract's order


def test_every_json_column_is_json_from_the_start() -> None:
    for name in ("dims", "dtypes", "params", "flags", "metrics", "gates", "launch", "fingerprint"):
        json.loads(planned_row(CELL)[name])


def test_evidence_is_claimed_only_by_what_ran() -> None:
    assert a_row()["evidence"] == ""
    assert a_row(origin={"target": "t", "fingerprint": {"a": 1}})["evidence"] == "executed"


def test_a_row_says_that_a_sample_was_compared() -> None:
    judged = {"status": "passed", "sampled_rows": 1026}
    row = a_row(measured=measured([10.0] * 20), judged=judged)
    assert json.loads(row["flags"]) == ["x", "compared in 1,026 of 4 rows"]
    assert json.loads(a_row(measured=measured([10.0] * 20), judged={"status": "passed"})["flags"]) == ["x"]


def test_speed_is_work_over_the_median() -> None:
    row = a_row(measured=measured([10.0] * 20))
    assert row["time_us_p50"] == 10.0
    assert row["bandwidth_gbps"] == pytest.approx(400.0)  # 4 MB in 10 us
    assert row["tflops"] == pytest.approx(0.2)  # 2e6 operations in 10 us
    assert (row["timing_quality"], row["samples"], row["bytes_moved"]) == ("ok", 20, 4_000_000)
    assert list(row) == list(COLUMNS)


def test_an_impossible_time_is_never_a_speed() -> None:
    row = a_row(measured=measured([10.0] * 20, peak=399.0))
    assert row["timing_quality"] == "impossible"
    assert [row[c] for c in SPEEDS] == [None] * len(SPEEDS)
    assert row["samples"] == 20  # they stay in samples.parquet
    assert a_row(measured=measured([10.0] * 20, peak=401.0))["timing_quality"] == "ok"
    assert a_row(measured=measured([10.0] * 20, peak=100.0, cold=False))["timing_quality"] == "ok"  # from a cache
    assert a_row(measured=measured([10.0] * 20, peak=79.0, cold=False))["timing_quality"] == "impossible"


@pytest.mark.parametrize("samples", [[0.0] * 9, [-1.0] * 9, [float("nan")] * 9, [float("inf")] * 9])
def test_times_that_no_clock_gives_are_impossible(samples: list[float]) -> None:
    row = a_row(measured=measured(samples))
    assert row["timing_quality"] == "impossible"
    assert [row[c] for c in SPEEDS] == [None] * len(SPEEDS)


def test_a_share_of_the_roof_is_the_roofs_time_over_the_median() -> None:
    def row(us: float, what: str = "copy", sound: bool = True, **timing: Any) -> dict[str, Any]:
        found = measured([us] * 20, host_us=[50.0] * 20, **timing)
        found["work"] = {"bytes_read": 64 << 20, "bytes_written": 0, "operations": {}}
        return a_row(measured={**found, "roof": {"us": 20.0, "what": what, "calibration": "c", "sound": sound}})

    assert row(25.0)["share_of_roof"] == pytest.approx(0.8)
    assert row(19.1)["share_of_roof"] == pytest.approx(20 / 19.1)
    beyond = row(19.0)  # 1.053 of it
    assert beyond["timing_quality"] == "impossible"
    assert [beyond[c] for c in SPEEDS] == [None] * len(SPEEDS)
    assert row(19.0, what="gemm")["timing_quality"] == "ok"  # somebody's product may beat the vendor's
    assert row(19.0, cold=False)["timing_quality"] == "ok"
    low = row(19.0, sound=False)  # measured while the device was held back
    assert (low["timing_quality"], low["share_of_roof"]) == ("ok", pytest.approx(20 / 19))
    assert a_row(measured=measured([25.0] * 20))["share_of_roof"] is None


def test_a_time_of_something_else_is_no_speed() -> None:
    row = a_row(measured=measured([10.0] * 20, outside_us=310.0, kernels_per_call=2.0, host_us=[50.0] * 20))
    assert row["timing_quality"] == "impossible" and row["kernels_per_call"] == 2.0
    assert [row[c] for c in SPEEDS] == [None] * len(SPEEDS)


def test_no_samples_no_speed() -> None:
    row = a_row(measured=measured([]))
    assert (row["timing_quality"], row["samples"]) == ("none", 0)
    assert [row[c] for c in SPEEDS] == [None] * len(SPEEDS)


def test_a_time_near_the_launch_floor_is_called_so() -> None:
    assert a_row(measured=measured([10.0] * 20, floor_us=4.0))["timing_quality"] == "launch_bound"
    assert a_row(measured=measured([10.0] * 20, floor_us=3.0))["timing_quality"] == "ok"


def test_the_worst_outputs_metrics_become_columns() -> None:
    judged = {
        "metrics": {"y": {"max_ulp": 9.0, "rel_l2": 0.1, "max_abs": 0.2}, "dw": {"max_ulp": 1.0}},
        "gates": {"y": {"rel_l2": 0.01}},
        "worst_output": "y",
        "worst_metric": "rel_l2",
        "worst_ratio": 10.0,
        "output_hash": "o",
        "input_hash": "i",
    }
    row = a_row(judged=judged)
    assert (row["max_ulp"], row["rel_l2"], row["max_abs"], row["worst_ratio"]) == (9.0, 0.1, 0.2, 10.0)
    # refused before any number was looked at
    early = a_row(judged={"status": "inaccurate", "reason": "y has 3 elements"})
    assert (early["worst_ratio"], early["max_ulp"], early["worst_output"]) == (None, None, "")


def test_counts_are_of_every_row_in_the_status_sets_order() -> None:
    rows = [{"status": s} for s in ("lost", "passed", "skipped", "passed")]
    assert list(counts(rows).items()) == [("passed", 2), ("skipped", 1), ("lost", 1)]


@given(st.lists(st.sampled_from(list(Status))))
def test_counts_sum_to_what_was_planned(statuses: list[Status]) -> None:
    assert sum(counts([{"status": s.value} for s in statuses]).values()) == len(statuses)


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("role", ["subject", "peer"])
@pytest.mark.parametrize("strict", [False, True])
def test_the_verdict_of_one_cell(status: Status, role: str, strict: bool) -> None:
    want = ("inconclusive", 4) if status in (Status.SKIPPED, Status.UNSUPPORTED) else ("passed", 0)
    if status in FARM_FAULTS:
        want = ("farm_fault", 3)
    elif status in FINDINGS and (role == "subject" or strict):
        want = ("findings", 1)
    assert verdict([{"status": status.value, "role": role}], strict_peers=strict) == want


def test_a_subject_that_proved_nothing_leaves_a_run_inconclusive() -> None:
    def row(provider: str, status: str, role: str = "subject", backend: str = "cpu") -> dict[str, str]:
        return {"provider": provider, "status": status, "role": role, "backend": backend}

    fine, none = row("farm", "passed"), row("mine", "unsupported")
    assert verdict([fine, none]) == ("inconclusive", 4)
    assert verdict([fine, none, row("mine", "passed")]) == ("passed", 0)
    assert verdict([fine, row("farm", "unsupported", backend="cuda")]) == ("inconclusive", 4)
    assert verdict([fine, row("liger", "unsupported", "peer")]) == ("passed", 0)
    assert verdict([row("liger", "unsupported", "peer")]) == ("inconclusive", 4)
    assert verdict([row("torch", "passed", "peer"), row("liger", "unsupported", "peer")]) == ("passed", 0)


def judged_row(provider: str, status: str, **more: Any) -> dict[str, Any]:
    role = "subject" if provider in ("farm", "mine") else "peer"
    metric = "max_ulp" if status == "inaccurate" else ""
    known = {"op": "rms_norm", "dims": "{}", "input_hash": "i", "evidence": "executed", "worst_metric": metric}
    cell_id = f"cuda/rms_norm/{provider}/auto/forward/bf16/4x8/llama"
    return {
        "provider": provider,
        "role": role,
        "status": status,
        "backend": "cuda",
        "cell_id": cell_id,
        **known,
        **more,
    }


OURS, TORCH, LIGER = judged_row("farm", "passed"), judged_row("torch", "inaccurate"), judged_row("liger", "inaccurate")


def test_where_every_peer_is_inaccurate_and_a_subject_passes_the_verdict_is_in_doubt() -> None:
    """A reference that an attacker wrote, or a contract that is wrong: whoever agrees with it is alone."""
    mine = judged_row("mine", "inaccurate")
    rows = [TORCH, mine, OURS, LIGER, judged_row("torch", "passed", input_hash="other")]
    (doubt,) = doubts(rows)
    assert (doubt.cell_id, doubt.subjects, doubt.peers) == (OURS["cell_id"], ("farm",), ("liger", "torch"))
    assert verdict(iter(rows)) == ("farm_fault", 3)


@pytest.mark.parametrize(
    "rows",
    [
        [OURS, TORCH],  # one peer alone may be worse than a good kernel
        [OURS, TORCH, judged_row("torch_compile", "inaccurate")],  # which is the same code
        [OURS, LIGER, judged_row("quack", "inaccurate")],  # of another rounding, both
        [OURS, TORCH, LIGER, judged_row("huggingface", "passed")],
        [OURS, TORCH, LIGER, judged_row("liger", "passed", mode="other")],
        [judged_row("farm", "inaccurate"), TORCH, LIGER],
        [TORCH, LIGER],
        [OURS, TORCH, judged_row("liger", "crashed")],
        [OURS, TORCH, judged_row("liger", "inaccurate", worst_metric="")],  # another shape, or a cheat
        [OURS, TORCH, {**LIGER, "input_hash": "other"}],
        [OURS, TORCH, {**LIGER, "cell_id": "cuda/rms_norm/liger/auto/forward/bf16/4x8/llama/x_layout=strided"}],
        [{**r, "evidence": "simulated"} for r in (OURS, TORCH, LIGER)],
    ],
)
def test_there_is_no_doubt_for_less(rows: list[dict[str, Any]]) -> None:
    assert doubts(rows) == [] and verdict(rows)[0] != "farm_fault"


def test_the_farms_own_fault_comes_before_findings() -> None:
    rows = [{"status": "inaccurate", "role": "subject"}, {"status": "lost", "role": "peer"}]
    assert verdict(rows) == ("farm_fault", 3)
    assert verdict(rows[:1]) == ("findings", 1)
    assert verdict([]) == ("inconclusive", 4)
    assert FINDINGS.isdisjoint(FARM_FAULTS)


def test_the_json_of_parameters_is_that_of_their_own_values() -> None:
    """It is remembered, and 1, 1.0 and True, 0.0 and -0.0 are equal but not the same."""
    values = (1, 1.0, True, 0.0, -0.0, False, 0, None, "1", [1, 2])
    for value in (*values, *values):
        row = planned_row(replace(CELL, params={"p": value}, cell_key="k"))
        assert row["params"] == canonical_json({"p": value})
