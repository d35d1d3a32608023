"""On two real NVIDIA GPUs of one host: two Ray nodes, each with a GPU and an environment of its own, one matrix over
both, and one of them killed in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvidia_gpus
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fake"))
from farm_process import FarmRun, wait_for
from nodes_cluster import NodesCluster

pytestmark = [pytest.mark.cuda, pytest.mark.ray]
if nvidia_gpus.count() < 2:
    pytest.skip(f"two NVIDIA GPUs are needed, nvidia-smi lists {nvidia_gpus.count()}", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesCluster]:
    """A head, and two nodes: one whose children are on this Python, one whose children are on another environment of it
    (torch is the vendor's and there once; what differs is the interpreter's prefix and its import path)."""
    made = NodesCluster(tmp_path_factory.mktemp("two"))
    other = made.folder / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(other)], check=True)
    paths = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    site = next(other.glob("lib/python*/site-packages"))
    (site / "_behind.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    try:
        made.start_head()
        for index, own in enumerate(({}, {"environments": {"default": {"python": str(other / "bin" / "python")}}})):
            made.join(f"gpu{index}", {"backend": "cuda", **own}, cpus=8, CUDA_VISIBLE_DEVICES=str(index))
        yield made
    finally:
        made.end()


def matrix(sizes: int) -> str:
    return json.dumps(
        {
            "name": "two",
            "op": "rms_norm",
            "require": ["cuda"],
            "providers": ["farm", "torch"],
            "axes": {
                "shape": [{"rows": 512, "hidden": [1024 + 8 * i for i in range(sizes)]}],
                "dtype": ["bfloat16", "float32"],
                "operation": ["forward", "backward"],
            },
        }
    )


def run_of(cluster: NodesCluster, folder: Path, sizes: int) -> FarmRun:
    return FarmRun(folder, matrix(sizes), (), address=cluster.address, backend="cuda").start()


def by_node(run: FarmRun, event: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"gpu0": [], "gpu1": []}
    for said in run.journal(event):
        found[said["device"].split("/")[0]].append(said)
    return found


def test_one_matrix_over_both(cluster: NodesCluster, tmp_path: Path) -> None:
    run = run_of(cluster, tmp_path / "run", 12)  # so many that the node which is up later has its share
    try:
        assert run.wait(240) == 0, run.said()
        rows = run.rows()
        assert {r["status"] for r in rows} == {"passed"} and {r["evidence"] for r in rows} == {"executed"}
        ups = {node: said[0] for node, said in by_node(run, "device_up").items()}
        assert ups["gpu0"]["fingerprint"]["uuid"] != ups["gpu1"]["fingerprint"]["uuid"]
        measured = by_node(run, "measured")
        assert measured["gpu0"] and measured["gpu1"]
        assert len(measured["gpu0"]) + len(measured["gpu1"]) == len(rows)
    finally:
        run.end()


def test_a_node_killed_in_the_middle_loses_nothing(cluster: NodesCluster, tmp_path: Path) -> None:
    run = run_of(cluster, tmp_path / "run", 20)
    try:
        wait_for("cells measured on the node that is about to be lost", lambda: by_node(run, "measured")["gpu1"], 180)
        cluster.lose("gpu1")
        assert run.wait(400) == 0, run.said()
        assert {r["status"] for r in run.rows()} == {"passed"}
        assert by_node(run, "device_down")["gpu1"]
    finally:
        run.end()
