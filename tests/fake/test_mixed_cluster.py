"""One matrix over hosts of three vendors and a CPU: real Ray, real supervision, fakes for the devices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_process import FarmRun, wait_for
from mixed_cluster import VENDORS, MixedCluster
from other_python import another_python

pytestmark = pytest.mark.ray
Farm = Callable[..., FarmRun]

DEVICES = {"gb200": ("cuda", 2), "mi300x": ("rocm", 2), "mi300x-b": ("rocm", 1), "n910b": ("ascend", 2)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Four hosts and a head that is one with CPU slots; the NPUs' environment is another Python."""
    made = MixedCluster(tmp_path_factory.mktemp("mixed"))
    python = another_python(made.folder)
    try:
        made.start("head", "cpu", 1, head=True)
        for name, (backend, devices) in DEVICES.items():
            own = {"environments": {"default": {"python": str(python)}}} if python and backend == "ascend" else {}
            made.start(name, backend, devices, **own)
        yield made
    finally:
        made.close()


def matrix(sizes: int = 6, wall_s: float = 0.02, **more: Any) -> str:
    """Each backend differs: NPUs in float32 alone, AMD forward alone, two shapes in the interpreter."""
    shape = [{"rows": 2, "hidden": [64 + i for i in range(sizes)]}]
    return json.dumps({
        "name": "mixed", "op": "rms_norm", "require": ["cuda", "rocm", "ascend", "cpu"],
        "axes": {"shape": shape, "dtype": ["float32", "bfloat16"], "operation": ["forward", "backward"]},
        "providers": ["torch"],
        "backends": {
            "rocm": {"operation": ["forward"]},
            "ascend": {"dtype": ["float32"]},
            "cpu": {"shape": [{"rows": 2, "hidden": 64}], "dtype": ["float32"]},
        },
        "sim": {"default": {"time_us": 10, "noise": 0.01, "wall_s": wall_s}}, **more,
    })  # fmt: skip


def test_every_cell_runs_on_its_own_backend(farm: Farm, cluster: MixedCluster) -> None:
    run = farm(matrix(), "--backend", "cuda,rocm,ascend,cpu", address=cluster.address)
    assert run.wait(150) == 0, run.said()
    rows = run.rows()
    assert Counter(r["backend"] for r in rows) == {"cuda": 24, "rocm": 12, "ascend": 12, "cpu": 2}
    assert {r["status"] for r in rows} == {"passed"}
    for row in rows:
        assert row["cell_id"].startswith(row["backend"] + "/")
        if row["backend"] == "cpu":
            assert row["evidence"] == "interpreted"
            continue
        assert row["evidence"] == "simulated"
        assert row["target"].startswith(f"{row['backend']}:{VENDORS[row['backend']]['model'].replace(' ', '-')}")
    ups = run.journal("device_up")
    assert Counter(u["backend"] for u in ups) == {"cuda": 2, "rocm": 3, "ascend": 2, "cpu": 1}
    assert len({u["device"] for u in ups}) == len({u["pid"] for u in ups}) == len(ups)  # an actor a device
    hosts = {name: backend for name, (backend, _) in DEVICES.items()}
    for up in ups:
        host = up["device"].split("/")[0]
        assert hosts.get(host, "cpu") == up["backend"], up
    used = run.run.head["backends"]
    assert {b: sum(u["counts"].values()) for b, u in used.items()} == {"cuda": 24, "rocm": 12, "ascend": 12, "cpu": 2}


def test_children_of_one_run_are_on_two_pythons(farm: Farm, cluster: MixedCluster) -> None:
    if another_python(cluster.folder) is None:
        pytest.skip("no other Python from 3.10 on was found on PATH")
    run = farm(matrix(1), "--backend", "cuda,ascend,rocm,cpu", address=cluster.address)
    assert run.wait(120) == 0, run.said()
    versions = {b: {json.loads(r["fingerprint"])["python"] for r in run.rows() if r["backend"] == b} for b in VENDORS}
    assert len(versions["cuda"]) == len(versions["ascend"]) == 1
    assert versions["cuda"] != versions["ascend"]


def test_a_backend_without_nodes_is_refused_before_the_start(farm: Farm, cluster: MixedCluster) -> None:
    run = farm(matrix(1, require=["cuda", "rocm"]), "--backend", "cuda,rocm,sim", address=cluster.address)
    assert run.wait() == 2, run.said()
    assert "backend sim: no such device here (there are: ascend, cpu, cuda, rocm)" in run.said()
    assert not Path(run.store.path, "runs", run.run_id).exists()


def test_a_node_lost_in_the_middle_is_survived(farm: Farm, cluster: MixedCluster) -> None:
    """Last in this module: the host does not come back."""
    run = farm(matrix(24, 0.1), "--backend", "cuda,rocm,ascend,cpu", address=cluster.address)
    lost = next(n for n in cluster.nodes if n.name == "mi300x-b")
    wait_for(
        "cells measured on the host that is about to be lost",
        lambda: [m for m in run.journal("measured") if m["device"].startswith("mi300x-b/")],
        90,
    )
    cluster.kill(lost)
    assert run.wait(240) == 0, run.said()
    rows = run.rows()
    assert {r["status"] for r in rows} == {"passed"}
    downs = [d for d in run.journal("device_down") if d["device"].startswith("mi300x-b/")]
    assert downs, run.said()
    # what it had measured, and a judge there had not seen, was done again elsewhere: nothing of it is lost
    assert Counter(r["backend"] for r in rows)["rocm"] == 24 * 2
