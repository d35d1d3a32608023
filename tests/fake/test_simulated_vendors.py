"""Fakes that play NVIDIA's, AMD's and Huawei's devices: real runs and children, each failure as the vendor shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_process import FarmRun

DEVICES: dict[str, dict[str, Any]] = {
    "cuda": {"model": "NVIDIA GB200", "power_limit_w": 1200, "driver": "580.95.05", "stack": "13.0", "per_module": 2},
    "rocm": {"model": "AMD Instinct MI355X", "partition": "cpx-nps2", "driver": "6.16.6", "stack": "7.1.1"},
    "ascend": {"model": "Ascend910B3", "driver": "25.2.0", "stack": "8.3.RC1"},
}
#: How each times what cannot be captured.
OTHERWISE = {"cuda": "events", "rocm": "events", "ascend": "mspti"}
FAULTS = ("illegal_access", "hang", "ub_overflow", "aicore", "abort", "capture")
KILLED = "the child ended with signal 6 (SIGABRT)"
STUCK = "phase check took more than 2 s"
#: backend -> fault -> (status, words of the reason)
CASES: dict[str, dict[str, tuple[str, str]]] = {
    "cuda": {
        "illegal_access": ("crashed", "an illegal memory access"),
        "hang": ("timed_out", STUCK),
        "ub_overflow": ("compile_error", "shared memory"),
        "aicore": ("crashed", "unspecified launch failure"),
        "abort": ("crashed", "device-side assert"),
        "capture": ("passed", ""),
    },
    "rocm": {
        "illegal_access": ("crashed", KILLED),
        "hang": ("crashed", KILLED),
        "ub_overflow": ("compile_error", "131072"),
        "aicore": ("crashed", KILLED),
        "abort": ("crashed", KILLED),
        "capture": ("passed", ""),
    },
    "ascend": {
        "illegal_access": ("crashed", "507035"),
        "hang": ("timed_out", STUCK),
        "ub_overflow": ("compile_error", "2621696 bits"),
        "aicore": ("crashed", "507015"),
        "abort": ("compile_error", "SIGABRT"),
        "capture": ("passed", ""),
    },
}
HIDDEN = {fault: 128 + i for i, fault in enumerate(FAULTS)}
FINE = (200, 201)


def matrix() -> str:
    """Each fault at a hidden size of its own, well-behaved cells around, all timed as the devices' default is."""
    rules = [{"when": {"hidden": HIDDEN[fault]}, "fault": fault} for fault in FAULTS]
    return json.dumps(
        {
            "name": "vendor",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 3, "hidden": [*HIDDEN.values(), *FINE]}], "dtype": "float32"},
            "providers": ["farm"],
            "timing": {"method": "rotating_graph", "min_samples": 3},
            "deadlines": {"check": 2, "compile": 10},
            "sim": {"default": {"time_us": 10, "noise": 0.01}, "rules": rules},
        }
    )


def node(folder: Path, backend: str, **more: Any) -> dict[str, str]:
    """The environment of a node that pretends to have two devices of the vendor."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"backend": backend, "devices": 2, "simulate": DEVICES[backend], **more}
    (folder / "node.yaml").write_text(json.dumps(config))
    return {"FARM_NODE": str(folder / "node.yaml"), "FARM_LOCKS": str(folder / "locks")}


@pytest.fixture(scope="module", params=DEVICES)
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmRun]:
    place = tmp_path_factory.mktemp(request.param)
    run = FarmRun(place, matrix(), backend=request.param, environment=node(place, request.param))
    try:
        run.start()
        run.wait(120)
        yield run
    finally:
        run.end()


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_said_of(done: FarmRun, fault: str) -> None:
    row = done.row_of(HIDDEN[fault])
    status, words = CASES[done.backend][fault]
    assert (row["status"], row["evidence"]) == (status, "simulated"), row
    assert words in row["reason"], row["reason"]
    assert row["fault_owner"] == ("" if status == "passed" else "kernel")
    assert row["cell_id"].startswith(f"{done.backend}/") and row["backend"] == done.backend


def test_a_capture_that_fails_or_kills_is_timed_otherwise(done: FarmRun) -> None:
    row, method = done.row_of(HIDDEN["capture"]), OTHERWISE[done.backend]
    assert row["timing_method"] == method, row
    assert f"timed by {method}: capture" in row["flags"]


def test_no_row_can_be_taken_for_a_devices(done: FarmRun) -> None:
    for row in done.run.rows:
        assert row["evidence"] == "simulated", row["cell_id"]
        assert row["device"].startswith("simulated "), row["device"]
        assert row["target"].startswith(f"{done.backend}:{DEVICES[done.backend]['model'].replace(' ', '-')}")
    told = done.run.head["backends"][done.backend]["devices"]
    assert {d["evidence"] for d in told} == {"simulated"} and len(told) == 2
    page = (done.store.pages / f"run-{done.run_id}.html").read_text()
    assert 'data-id="run-simulated"' in page and 'class="evidence ev-simulated"' in page
    proven = (done.store.pages / "evidence.html").read_text()
    section = proven.partition(f'<section id="{done.backend}">')[2].partition("</section>")[0]
    assert 'data-id="never-executed"' in section


def test_the_neighbours_finish_and_all_is_accounted_for(done: FarmRun) -> None:
    assert [done.row_of(h)["status"] for h in FINE] == ["passed"] * len(FINE)
    assert len(done.run.rows) == done.run.head["planned"] == len(FAULTS) + len(FINE)
    assert done.process is not None and done.process.returncode == 1  # findings, and no fault of the farm


def test_a_label_that_is_not_so_is_refused_and_the_cells_are_lost(tmp_path: Path) -> None:
    wrong = node(tmp_path, "rocm", labels={"model": "MI300X"})
    run = FarmRun(tmp_path, matrix(), backend="rocm", environment=wrong)
    try:
        run.start()
        run.wait(60)
        said = (tmp_path / "out.txt").read_text()
        assert "the node's label states model MI300X, but the device is AMD Instinct MI355X" in said
        assert {r["status"] for r in run.run.rows} == {"lost"}
        assert "MI300X" in run.run.rows[0]["reason"]
    finally:
        run.end()
