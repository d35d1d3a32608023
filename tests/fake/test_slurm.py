"""`farm nodes join --slurm`: the batch script in allocations that end, under a run that goes on through them.

Slurm's commands are stubs (slurm_stubs.py); the script, Ray, the node, its drain and the run are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_stubs
from farm_process import FarmRun, wait_for
from nodes_cluster import SMALL, NodesCluster
from test_nodes import matrix

pytestmark = pytest.mark.ray
Farm = Callable[..., FarmRun]
NOTICE, LIMIT = 20, 50  # seconds: the shortest notice that the script takes, and time to join before it
MI300X = {"backend": "rocm", "simulate": {"model": "AMD Instinct MI300X", "devices": 2}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NodesCluster]:
    made = NodesCluster(tmp_path)
    try:
        made.start_head()
        yield made
    finally:
        (tmp_path / "slurm" / "cancel").touch()
        made.end()


def events(spool: Path) -> list[dict[str, Any]]:
    file = spool / "sbatch.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.long
def test_a_run_goes_on_through_allocations(farm: Farm, cluster: NodesCluster, tmp_path: Path) -> None:
    bin_, spool = tmp_path / "bin", tmp_path / "slurm"
    bin_.mkdir()
    slurm_stubs.install(bin_, spool)
    node = tmp_path / "node.yaml"
    node.write_text(json.dumps(MI300X))
    environment = {
        **cluster.environment,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "FARM_NODE": str(node),
        "ROCR_VISIBLE_DEVICES": "0,1",
        "FARM_TEST_QUEUE_S": "2",
    }
    script = tmp_path / "node.sh"
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "farm",
            "nodes",
            "join",
            "--slurm",
            "--head",
            cluster.address,
            "--time",
            f"0:00:{LIMIT:02d}",
            "--notice",
            str(NOTICE),
            "--partition",
            "amd",
            "--gres",
            "gpu:2",
            "--skip-doctor",
            "--script",
            str(script),
            "--ray=--num-cpus=2",
            *SMALL,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "sbatch" in made.stdout
    with (spool / "sbatch.txt").open("wb") as out:
        queue = subprocess.Popen(
            [bin_ / "sbatch", script], env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        # cells of a second: more than one allocation's worth
        run = farm(matrix(90, wall_s=0.9), "--wait-for-devices", "60", address=cluster.address, backend="rocm")
        wait_for("a second allocation", lambda: _count(spool, "started") == 2, 120)
        first = [e for e in events(spool) if e.get("allocation") == 1]
        assert [e["event"] for e in first] == ["started", "signalled", "ended"]
        assert first[-1]["code"] == 0 and first[-1]["after"] < LIMIT  # it left by itself, before it was made to
        assert len(run.journal("retired")) == 2 and all(e["drained"] for e in run.journal("retired"))
        assert run.process is not None and run.process.poll() is None, run.said()
        assert run.wait(120) == 0, run.said()
    finally:
        (spool / "cancel").touch()
        queue.wait(timeout=30)
    rows = run.rows()
    assert [r["status"] for r in rows] == ["passed"] * 90, (spool / "job.txt").read_text()
    assert {r["attempt"] for r in rows} == {1}  # the drain took nothing from a cell
    submitted = events(spool)[0]["options"]
    assert {submitted["--partition"], submitted["--gres"]} == {"amd", "gpu:2"}
    ups = run.journal("device_up")
    assert len(ups) >= 4 and {e["device"] for e in ups} == {"slurm1/rocm:0", "slurm1/rocm:1"}


def _count(spool: Path, event: str) -> int:
    return sum(e["event"] == event for e in events(spool))
