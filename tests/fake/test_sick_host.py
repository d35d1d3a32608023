"""A host that is short of something, or loses it, in the middle of a run: the farm says so and accuses no kernel."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import pytest
from farm_fixture import Farm
from farm_process import IMPORTS
from test_kills import matrix


def test_few_file_descriptors_accuse_nobody(farm: Farm) -> None:
    most = 24
    run = farm(matrix(12), popen={"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))})
    assert run.wait(90) in (0, 3), run.said()
    assert {row["fault_owner"] for row in run.rows()} <= {"", "infra", "harness"}


def test_a_spool_that_is_deleted_under_a_run_costs_what_was_in_it(farm: Farm) -> None:
    run = farm(matrix(60), "--devices", "2")
    run.wait_for("result", 5)
    shutil.rmtree(run.spool)
    run.wait(90)
    rows = run.rows()
    assert {row["fault_owner"] for row in rows if row["status"] != "passed"} <= {"infra", "harness"}
    assert sum(row["status"] == "passed" for row in rows) >= 56  # at most what two devices and their judges had


KERNELS = """
import ctypes, os, signal
import torch


def right(x, weight, eps):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def holds_the_interpreter(x, weight, eps):
    ctypes.PyDLL(None).sleep(600)


def needs_more_memory_than_there_is(x, weight, eps):
    return torch.empty(1 << 55, dtype=torch.uint8)


def stops_itself(x, weight, eps):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
ENDS = {
    "right": "passed",
    "holds_the_interpreter": "timed_out",
    "needs_more_memory_than_there_is": "out_of_memory",
    "stops_itself": "timed_out",
}


@pytest.mark.long
def test_who_takes_the_process_over_is_ended_and_named(farm: Farm, tmp_path: Path) -> None:
    text = json.dumps(
        {
            "name": "takers",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 4, "hidden": 64}], "dtype": "float32"},
            "providers": ["torch"],
        }
    )
    words = [w for name in ENDS for w in ("--provider", f"{name}=takers:{name}")]
    (tmp_path / "takers.py").write_text(KERNELS, encoding="utf-8")
    imports = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{IMPORTS}"}
    run = farm(text, "--set", "deadlines.check=5", *words, backend="cpu", environment=imports)
    assert run.wait() == 1, run.said()
    rows = {row["provider"]: row for row in run.rows()}
    assert {name: rows[name]["status"] for name in (*ENDS, "torch")} == {**ENDS, "torch": "passed"}
    run.assert_nothing_left()
