"""Bytes really moved and the model's are both in the row and in the tip of the cell on the run's page."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic_runs import row
from test_accuracy_evaluate import cell

from farm.cell import Status
from farm.dashboards import heat
from farm.store import results


def finished(facts: dict[str, Any], timing: dict[str, Any]) -> dict[str, Any]:
    work = {"bytes_read": 60, "bytes_written": 40, "operations": {"vector": 7}}
    return results.finish_row(
        cell(),
        status=Status.PASSED,
        reason="",
        owner="",
        attempt=1,
        evidence="interpreted",
        measured={"facts": facts, "timing": timing, "work": work},
    )


def test_a_row_holds_both_and_null_where_nothing_was_counted() -> None:
    none = {"method": "none", "samples_us": []}
    found = finished({"bytes_counted": 146, "bytes_requested": 200, "peak_memory_live_mib": 8.5}, none)
    assert (found["bytes_moved"], found["bytes_counted"], found["bytes_requested"]) == (100, 146, 200)
    assert found["peak_memory_live_mib"] == 8.5
    empty = finished({}, none)
    assert empty["bytes_counted"] is empty["bytes_requested"] is empty["peak_memory_live_mib"] is None
    assert empty["bitwise_repeatable"] is None


@pytest.mark.parametrize(("more", "repeatable"), [({}, 1), ({"timed_outputs": [{"name": "y"}]}, 0)])
def test_outputs_of_timed_launches_that_differ_are_recorded(more: dict[str, Any], repeatable: int) -> None:
    timing = {"method": "events", "samples_us": [5.0] * 20, "host_us": [], "cold": True, "floor_us": 1.0, **more}
    assert finished({}, timing)["bitwise_repeatable"] == repeatable


def tip(**given: Any) -> str:
    ((table,),) = heat.heats([row(0, evidence="interpreted", worst_ratio=0.5, **given)], {}).values()
    return str(table.spots[0].tip)


def test_the_page_says_what_a_kernel_that_reads_twice_moves() -> None:
    assert "1.50x" in tip(bytes_moved=1000, bytes_counted=1500)
    assert "x" not in tip(bytes_moved=1000)
