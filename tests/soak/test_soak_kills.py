"""kill -9 at random moments, again and again, of everything that a run consists of, and in between signals for all of
it; then it is resumed to its end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_fixture import Farm
from farm_process import FarmRun, marked
from killing import HEARD, assert_right, disturb, ended, kill_one, matrix, of_kind, pause, random_order, resumed
from nodes_cluster import NodesCluster

GB200 = {"backend": "cuda", "simulate": {"model": "NVIDIA GB200", "devices": 2}}


@pytest.mark.soak(seconds=40)
@pytest.mark.parametrize("loop", range(4))
def test_kills_without_ray(farm: Farm, dice: random.Random, loop: int) -> None:
    run = farm(matrix(250), "--devices", "3", popen=HEARD)
    kinds = ["child", "child", "child", "worker", "supervisor"]
    assert disturb(run, dice, random_order(dice, kinds, kills=10, signals=1))


@pytest.mark.ray
@pytest.mark.soak(seconds=90)
@pytest.mark.parametrize("loop", range(2))
def test_kills_on_ray(farm: Farm, dice: random.Random, loop: int) -> None:
    run = farm(matrix(200), "--devices", "3", address="local", popen=HEARD)
    kinds = ["child", "child", "actor", "judge", "raylet", "gcs", "worker", "supervisor", "any"]
    assert disturb(run, dice, random_order(dice, kinds, kills=5, signals=1))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NodesCluster]:
    made = NodesCluster(tmp_path)
    try:
        made.start_head()
        for name in ("a", "b"):
            made.join(name, GB200)
        yield made
    finally:
        made.end()


@pytest.mark.ray
@pytest.mark.soak(seconds=70)
def test_kills_of_nodes(farm: Farm, cluster: NodesCluster, dice: random.Random) -> None:
    """A node's power, or its raylet alone; it joins again.  In between, children and actors on it, and the driver."""
    run = farm(matrix(300, 0.2), address=cluster.address, backend="cuda")
    run.wait_for("result", 4)
    done: list[str] = []
    with ended(run) as later:
        current: FarmRun = run
        for kind in dice.sample(["power", "raylet", "child", "actor", "driver"], 5):
            pause(dice, 2.0)
            assert current.process is not None
            if current.process.poll() is not None:
                break
            node = dice.choice(["a", "b"])
            if kind == "driver":
                current.process.kill()
                current.process.wait(timeout=20)
                run.rows()
                current = resumed(run)
                later.append(current)
            elif kind == "power":
                cluster.lose(node)
            else:
                there = set(cluster.of_node(node)) & set(of_kind(cluster.mark, kind))
                if not there:
                    continue
                kill_one(dice, sorted(there))
            done.append(kind)
            if kind == "raylet":
                pause(dice, 2.0)
                cluster.lose(node)  # what is left of it
            if kind in ("power", "raylet"):
                cluster.join(node, GB200)
        assert current.wait(150) in (1, 3), current.said()
        assert_right(run, 4 * len(done))  # one node is two devices, and each may have had a cell in its second try
    print("killed:", *done)
    assert not [line for line in marked(run.mark).values() if "farm.child" in line]
