"""One cluster of three vendors and a CPU: one matrix over all of it, `farm nodes`, masks, bundles, two Pythons, drain
and restore in mid-run, a node that dies and comes back.

The accelerators are fakes that play NVIDIA's, AMD's and Ascend's; Ray, the actors, the children are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_process import IMPORTS, ROOT, FarmRun, marked, wait_for
from nodes_cluster import NodesCluster
from other_python import another_python

from farm.cluster import address
from farm.judge.digest import judging_digest

pytestmark = pytest.mark.ray
Farm = Callable[..., FarmRun]
GB200 = {"backend": "cuda", "labels": {"rack": "r1"}, "simulate": {"model": "NVIDIA GB200", "devices": 2}}
MI300X = {"backend": "rocm", "simulate": {"model": "AMD Instinct MI300X", "devices": 2, "driver": "6.12.12"}}
ATLAS: dict[str, Any] = {"backend": "ascend", "simulate": {"model": "Ascend910B3", "devices": 2, "cann": "8.3.RC1"}}


NODES = {"cuda": ["gb200-a", "gb200-b"], "rocm": ["mi300x"], "ascend": ["atlas"], "cpu": ["host"]}
MODELS = {"cuda": "NVIDIA-GB200", "rocm": "AMD-Instinct-MI300X", "ascend": "Ascend910B3"}


def differing(sizes: int = 6, **more: Any) -> str:
    """Each backend differs: NPUs in float32 alone, AMD forward alone, one shape in the interpreter."""
    return json.dumps(
        {
            "name": "differing",
            "op": "rms_norm",
            "providers": ["torch"],
            "require": ["cuda", "rocm", "ascend", "cpu"],
            "axes": {
                "shape": [{"rows": 2, "hidden": [64 + i for i in range(sizes)]}],
                "dtype": ["float32", "bfloat16"],
                "operation": ["forward", "backward"],
            },
            "backends": {
                "rocm": {"operation": ["forward"]},
                "ascend": {"dtype": ["float32"]},
                "cpu": {"shape": [{"rows": 2, "hidden": 64}], "dtype": ["float32"]},
            },
            "sim": {"default": {"time_us": 10, "noise": 0.01, "wall_s": 0.02}},
            **more,
        }
    )


def matrix(cells: int, wall_s: float = 0.05, **script: Any) -> str:
    return json.dumps(
        {
            "name": "nodes",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"},
            "providers": ["farm"],
            "sim": {"default": {"time_us": 10, "wall_s": wall_s, **script}},
        }
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesCluster]:
    made = NodesCluster(tmp_path_factory.mktemp("nodes"))
    python = another_python(made.folder)
    other = {"environments": {"default": {"python": str(python)}}} if python else {}
    try:
        made.start_head()
        made.join("gb200-a", GB200, CUDA_VISIBLE_DEVICES="5,6")
        made.join("gb200-b", GB200)
        made.join("mi300x", MI300X, HIP_VISIBLE_DEVICES="4,6")
        made.join("atlas", {**ATLAS, **other}, ASCEND_RT_VISIBLE_DEVICES="3,2")
        made.join("host", {"backend": "cpu", "devices": 1})
        yield made
    finally:
        made.end()


def devices(run: FarmRun, event: str) -> list[str]:
    return sorted(e["device"] for e in run.journal(event))


def test_a_run_on_a_host_of_the_cluster_joins_it_unasked(cluster: NodesCluster) -> None:
    """Only while a node that this user has started runs here."""
    here, source = address.default({"RAY_TMPDIR": cluster.own})
    assert here.endswith(f":{cluster.port}") and source.startswith(cluster.own)
    assert address.default({"RAY_TMPDIR": cluster.own, "FARM_ADDRESS": "inline"})[0] == "inline"


def test_every_cell_runs_on_its_own_backend(farm: Farm, cluster: NodesCluster) -> None:
    planned = {"cuda": 24, "rocm": 12, "ascend": 12, "cpu": 2}
    run = farm(differing(), address=cluster.address, backend="cuda,rocm,ascend,cpu")
    assert run.wait(150) == 0, run.said()
    rows = run.rows()
    assert Counter(r["backend"] for r in rows) == planned
    assert {r["status"] for r in rows} == {"passed"}
    for row in rows:
        assert row["cell_id"].startswith(row["backend"] + "/")
        assert row["evidence"] == ("interpreted" if row["backend"] == "cpu" else "simulated")
        assert row["target"].startswith(f"{row['backend']}:{MODELS.get(row['backend'], 'cpu-')}")
    ups = run.journal("device_up")
    assert Counter(u["backend"] for u in ups) == {"cuda": 4, "rocm": 2, "ascend": 2, "cpu": 1}
    assert len({u["device"] for u in ups}) == len({u["pid"] for u in ups}) == len(ups)  # an actor a device
    assert all(u["device"].split("/")[0] in NODES[u["backend"]] for u in ups)
    measured = {m["cell"]: m["device"].split("/")[0] for m in run.journal("measured")}
    assert all(measured[r["index"]] in NODES[r["backend"]] for r in rows)
    assert {b: sum(u["counts"].values()) for b, u in run.run.head["backends"].items()} == planned
    pythons = {b: {json.loads(r["fingerprint"])["python"] for r in rows if r["backend"] == b} for b in NODES}
    assert {len(found) for found in pythons.values()} == {1}
    if another_python(cluster.folder):  # else this host has but one
        assert pythons["ascend"] != pythons["cuda"] == pythons["rocm"]


def test_a_backend_without_nodes_is_refused_before_the_start(farm: Farm, cluster: NodesCluster) -> None:
    run = farm(differing(1, require=["cuda"]), address=cluster.address, backend="cuda,rocm,sim")
    assert run.wait() == 2, run.said()
    said = run.said()
    assert "backend sim" in said and "ascend (2), cpu (1), cuda (4), rocm (2)" in said
    assert "[cluster-backend-absent]" in said
    assert not Path(run.store.path, "runs", run.run_id).exists()


def test_the_list_has_every_node(cluster: NodesCluster) -> None:
    found = cluster.listed()
    (name,) = [n for n, row in found.items() if row["labels"].get("role") == "head"]  # Ray's own: an address
    assert found.pop(name)["backends"] == {}
    assert {n: (r["backends"], r["model"], r["state"]) for n, r in found.items()} == {
        "gb200-a": ({"cuda": 2}, "NVIDIA-GB200", "up"),
        "gb200-b": ({"cuda": 2}, "NVIDIA-GB200", "up"),
        "mi300x": ({"rocm": 2}, "AMD-Instinct-MI300X", "up"),
        "atlas": ({"ascend": 2}, "Ascend910B3", "up"),
        "host": ({"cpu": 1}, f"cpu-{platform.machine()}", "up"),
    }
    assert found["gb200-a"]["labels"]["rack"] == "r1"
    text = cluster.farm().stdout.splitlines()
    assert text[0].startswith("NODE") and len(text) == 7


def test_each_actor_has_its_own_device_and_children_import_the_bundles(farm: Farm, cluster: NodesCluster) -> None:
    run = farm(matrix(12, 0.2), address=cluster.address, backend="cuda,rocm,ascend")
    ups = run.wait_for("device_up", 8)
    paths = {}
    for up in ups:
        with contextlib.suppress(OSError):
            environ = dict(
                item.partition(b"=")[::2] for item in Path(f"/proc/{up['pid']}/environ").read_bytes().split(b"\0")
            )
            paths[up["device"]] = environ[b"PYTHONPATH"].decode().split(":")
    assert run.wait() == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 36
    assert {r["evidence"] for r in run.rows()} == {"simulated"}
    opened: dict[str, list[str]] = {}
    for up in ups:
        opened.setdefault(up["device"].partition("/")[0], []).append(up["name"].rpartition("#")[2])
    assert {n: sorted(ids) for n, ids in opened.items()} == {
        "gb200-a": ["5", "6"],
        "gb200-b": ["0", "1"],
        "mi300x": ["4", "6"],
        "atlas": ["2", "3"],
    }
    assert len(paths) == 8
    for path in paths.values():
        assert all("/bundles/" in folder for folder in path[:2]), path
    row = cluster.listed()["mi300x"]
    assert row["simulated"] and row["targets"] == ["rocm:AMD-Instinct-MI300X"]
    assert row["versions"]["driver"] == "6.12.12"


@pytest.mark.long
def test_drain_and_restore_in_mid_run(farm: Farm, cluster: NodesCluster) -> None:
    run = farm(matrix(1200, 0.3), address=cluster.address, backend="cuda")
    run.wait_for("result", 8)
    done = cluster.farm("drain", "gb200-a", "--reason", "swap a fan", "--wait", "45")
    assert (done.returncode, done.stdout) == (0, "gb200-a: drained\n"), done.stderr
    mine = ["gb200-a/cuda:0", "gb200-a/cuda:1"]
    assert devices(run, "drain") == devices(run, "retired") == mine
    assert all(e["drained"] for e in run.journal("retired"))
    row = cluster.listed()["gb200-a"]
    assert row["state"] == "drained" and row["out"]["reason"] == "swap a fan"
    assert run.process is not None and run.process.poll() is None, run.said()
    before = len(run.journal("result"))
    wait_for("the others go on", lambda: len(run.journal("result")) > before + 4, 30)
    back = cluster.farm("restore", "gb200-a")
    assert (back.returncode, back.stdout) == (0, "gb200-a: up\n"), back.stderr
    run.wait_for("device_added", 2)
    wait_for("it is up again", lambda: devices(run, "device_up").count(mine[0]) == 2, 60)
    at = max(i for i, e in enumerate(run.journal()) if e["event"] == "device_up")
    wait_for("it works", lambda: {e["device"] for e in run.journal()[at:] if e["event"] == "judged"} >= set(mine), 60)
    run.ctrl_c()  # what is proven does not need the rest
    assert run.wait() == 3, run.said()
    results = [e["row"] for e in run.journal("result")]
    assert {r["status"] for r in results} == {"passed"}
    assert {r["attempt"] for r in results} == {1}  # a drained device finished what it had begun


@pytest.mark.long
def test_a_run_does_not_start_on_drained_nodes(farm: Farm, cluster: NodesCluster) -> None:
    assert cluster.farm("drain", "mi300x").stdout == "mi300x: draining\n"
    try:
        refused = farm(matrix(2), address=cluster.address, backend="rocm")
        assert refused.wait() == 2
        said = refused.said()
        assert "rocm" in said and "farm nodes restore mi300x" in said and "[cluster-backend-absent]" in said
        waiting = farm(matrix(2), "--wait-for-devices", "60", address=cluster.address, backend="rocm")
        time.sleep(4)
        assert waiting.process is not None and waiting.process.poll() is None, waiting.said()
    finally:
        assert cluster.farm("restore", "mi300x").stdout == "mi300x: up\n"
    assert waiting.wait() == 0, waiting.said()
    assert [r["status"] for r in waiting.rows()] == ["passed"] * 2


@pytest.mark.long
def test_the_last_node_is_drained_and_restored_and_nothing_is_lost(farm: Farm, cluster: NodesCluster) -> None:
    run = farm(matrix(150, 0.3), address=cluster.address, backend="rocm")
    run.wait_for("result", 4)
    done = cluster.farm("drain", "mi300x", "--wait", "60", seconds=120)
    assert (done.returncode, done.stdout) == (0, "mi300x: drained\n"), done.stderr
    assert "[nodes-run-waits]" in done.stderr and run.run_id in done.stderr
    (waits,) = run.wait_for("cells_wait", 1)
    assert waits["nodes"] == ["mi300x"] and waits["reason"] in run.said()
    assert not any(e["row"]["status"] == "lost" for e in run.journal("result"))
    assert cluster.farm("restore", "mi300x").stdout == "mi300x: up\n"
    assert run.wait(300) == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 150


def busy(farm: Farm, cluster: NodesCluster) -> FarmRun:
    """A run that has both devices of a node for minutes, as the registry of nodes knows."""
    run = farm(matrix(4000, 0.3), address=cluster.address, backend="rocm")
    run.wait_for("device_up", 2)
    wait_for(
        "the registry to know it",
        lambda: {d.get("up", {}).get("run") for d in cluster.listed()["mi300x"]["devices"].values()} == {run.run_id},
    )
    return run


@pytest.mark.long
def test_a_second_run_waits_for_the_first_however_long(farm: Farm, cluster: NodesCluster) -> None:
    first = busy(farm, cluster)
    silence = 5.0
    second = farm(matrix(4), "--set", f"deadlines.silence={silence:g}", address=cluster.address, backend="rocm")
    waits = second.wait_for("device_waits", 2)
    assert all(first.run_id in e["reason"] for e in waits) and waits[0]["reason"] in second.said()
    time.sleep(2 * silence)  # longer than an actor may be silent
    assert second.process is not None and second.process.poll() is None, second.said()
    first.ctrl_c()
    assert second.wait(300) == 0, second.said()
    assert [r["status"] for r in second.rows()] == ["passed"] * 4
    assert second.journal("device_down") == [] == second.journal("replaced")
    assert first.wait() == 3, first.said()
    assert {e["row"]["status"] for e in first.journal("result")} == {"passed"}


@pytest.mark.long
def test_a_second_run_that_waited_in_vain_can_be_resumed(farm: Farm, cluster: NodesCluster) -> None:
    first = busy(farm, cluster)
    second = farm(matrix(4), "--wait", "5", address=cluster.address, backend="rocm")
    assert second.wait(300) == 3, second.said()
    said = second.said()
    assert "[run-lacks-devices]" in said and "farm resume" in said and first.run_id in said
    assert not (second.run.dir / "run.json").exists()
    assert all(e["busy"] for e in second.journal("device_down"))
    assert (cluster.listed()["mi300x"]["last_fault"] or {}).get("run") != second.run_id
    first.ctrl_c()
    assert first.wait() == 3, first.said()


@pytest.mark.long
def test_a_node_that_is_lost_in_mid_run_and_joins_again(farm: Farm, cluster: NodesCluster) -> None:
    run = farm(matrix(220, 0.3), address=cluster.address, backend="cuda")
    run.wait_for("result", 8)
    cluster.lose("gb200-b")
    wait_for("its devices are given up", lambda: len(run.journal("retired")) == 2, 40)
    assert run.process is not None and run.process.poll() is None, run.said()
    cluster.join("gb200-b", GB200)
    assert len(run.wait_for("device_added", 2)) == 2
    assert devices(run, "device_added") == ["gb200-b/cuda:0", "gb200-b/cuda:1"]
    wait_for("it works again", lambda: devices(run, "device_up").count("gb200-b/cuda:0") == 2, 40)
    assert run.wait(150) == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 220
    row = cluster.listed()["gb200-b"]
    assert row["state"] == "up"
    assert row["last_fault"] is not None and "left the cluster" in row["last_fault"]["reason"]


def test_an_environment_that_no_node_has_is_said_of_every_cell(farm: Farm, cluster: NodesCluster) -> None:
    patience = ("--wait-for-devices", "0")
    run = farm(matrix(3), "--environment", "weekly", *patience, address=cluster.address, backend="rocm")
    assert run.wait() == 3, run.said()
    assert "[run-lacks-devices]" in run.said() and "farm resume" in run.said()
    assert not (run.run.dir / "run.json").exists()
    for row in run.rows():
        assert row["status"] == "lost" and '"weekly"' in row["reason"] and "default" in row["reason"], row


@pytest.mark.parametrize(
    ("name", "fact"), [("gb200", '"gb200-'), ("nonsense", ", atlas, gb200-a, gb200-b, host, mi300x")]
)
def test_an_unknown_node_is_refused_with_the_near_miss(cluster: NodesCluster, name: str, fact: str) -> None:
    done = cluster.farm("drain", name)
    assert done.returncode == 2 and "[nodes-unknown]" in done.stderr and fact in done.stderr, done.stderr


@pytest.mark.long
def test_a_name_of_several_nodes_is_refused(cluster: NodesCluster) -> None:
    found: dict[str, Any] = cluster.listed()
    done = cluster.farm("drain", found["atlas"]["host"])  # they are all on this machine
    assert done.returncode == 2 and "[nodes-ambiguous]" in done.stderr, done.stderr
    again = cluster.farm("drain", found["atlas"]["id"][:12], "--once")
    assert again.stdout == "atlas: draining\n", again.stderr
    assert cluster.farm("restore", "atlas").stdout == "atlas: up\n"
    assert cluster.farm("restore", "atlas").stdout == "atlas: was up\n"


def lax_checkout(folder: Path) -> str:
    """A checkout of the same version whose tolerances are a million times as wide; the import path of its node."""
    shutil.copytree(ROOT / "farm", folder / "farm", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "farm" / "contracts" / "gates.py").open("a", encoding="utf-8") as gates:
        gates.write("\n\n_right = limits\n\n\ndef limits(*given, **more):\n")
        gates.write("    return {name: 1e6 * limit for name, limit in _right(*given, **more).items()}\n")
    first = f"import sys\nsys.path.insert(0, {str(folder)!r})\n"  # also before what this Python's .pth files name
    (folder / "sitecustomize.py").write_text(first, encoding="utf-8")
    return os.pathsep.join([str(folder), IMPORTS])


def test_a_node_with_another_checkout_judges_by_the_contracts_of_the_run(
    farm: Farm, cluster: NodesCluster, tmp_path: Path
) -> None:
    """And with another protocol it does not serve."""
    path = lax_checkout(tmp_path / "stale")
    cluster.join("stale", {"backend": "sim", "devices": 1}, cpus=2, PYTHONPATH=path)
    try:
        run = farm(matrix(2, error=0.05), address=cluster.address, backend="sim")
        assert run.wait() == 1, run.said()
        judged = {(r["status"], r["fault_owner"], r["judged_by"]) for r in run.rows()}
        assert judged == {("inaccurate", "kernel", judging_digest())}
        (told,) = run.journal("node_differs")
        assert told["node"] == "stale" and told["content"] != told["ours"]
        assert told["content"] in run.said() and told["ours"] in run.said()
        with (tmp_path / "stale" / "farm" / "__init__.py").open("a", encoding="utf-8") as changed:
            changed.write("PROTOCOL = 0\n")
        run = farm(matrix(2), "--wait-for-devices", "0", address=cluster.address, backend="sim")
        assert run.wait() == 3, run.said()
        (down,) = run.journal("device_down")
        assert down["final"] and "protocol 0" in down["reason"]
        assert {r["status"] for r in run.rows()} == {"lost"}
    finally:
        cluster.lose("stale")


@pytest.mark.long
def test_a_run_whose_own_raylet_dies_says_so(farm: Farm, cluster: NodesCluster) -> None:
    """Ray alone would end the run with 1, which means findings.  The last in this file: the head dies of it."""
    run = farm(matrix(400, 0.3), address=cluster.address, backend="ascend")
    run.wait_for("result", 2)
    pids = set(marked(cluster.mark)) - {p for name in cluster.nodes for p in cluster.of_node(name)}
    (raylet,) = [p for p in pids if "raylet/raylet" in marked(cluster.mark).get(p, "").split(" ")[0]]
    os.kill(raylet, signal.SIGKILL)
    assert run.wait(60) == 3, run.said()
    assert "[raylet-died]" in run.said()
    assert {e["row"]["status"] for e in run.journal("result")} == {"passed"}
