"""kill -9 at random moments, again and again, of everything that a run consists of; then it is resumed to its end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from farm_fixture import Farm
from farm_process import FarmRun, marked
from killing import LINGERING, assert_right, ended, kill_one, matrix, of_kind, resumed
from nodes_cluster import NodesCluster

GB200 = {"backend": "cuda", "simulate": {"model": "NVIDIA GB200", "devices": 2}}
#: A fourth death in a row is the end of a device; the loop is not about a run without devices.
MOST_ACTORS = 2


def kill_loop(run: FarmRun, dice: random.Random, kinds: list[str], kills: int) -> list[str]:
    """Kill until the run is complete or `kills` are done, and let it finish: what was killed, in order."""
    done: list[str] = []
    with ended(run) as later:
        current: FarmRun = run
        run.wait_for("result")
        actors = 0
        while len(done) < kills:
            time.sleep(dice.uniform(0.0, 1.5))
            kind = dice.choice(kinds)
            assert current.process is not None
            if current.process.poll() is not None:
                break
            found = [current.process.pid] if kind == "driver" else of_kind(current.mark, kind)
            if not found or (kind == "actor" and actors == MOST_ACTORS):
                continue
            kill_one(dice, found)
            done.append(kind)
            actors += kind == "actor"
            if kind in ("driver", "raylet"):
                code = current.wait(60)
                assert code in (-9, 3) or run.run.complete, current.said()
                current.assert_nothing_left(60, but=LINGERING)
                if run.run.complete:
                    break
                run.rows()  # planned = accounted for, however it ended
                current, actors = resumed(run), 0
                later.append(current)
        assert current.wait(120) in ((1, 3) if done else (1,)) or run.run.complete, current.said()
        assert_right(run, len(done))
        current.assert_nothing_left(60, but=LINGERING)
        assert not run.spool.exists()
    print("killed:", *done)
    return done


@pytest.mark.soak(seconds=15)
@pytest.mark.parametrize("loop", range(2))
def test_kills_without_ray(farm: Farm, dice: random.Random, loop: int) -> None:
    run = farm(matrix(150), "--devices", "3")
    assert kill_loop(run, dice, ["child", "child", "driver"], 10)


@pytest.mark.ray
@pytest.mark.soak(seconds=50)
@pytest.mark.parametrize("loop", range(2))
def test_kills_on_ray(farm: Farm, dice: random.Random, loop: int) -> None:
    run = farm(matrix(200), "--devices", "3", address="local")
    assert kill_loop(run, dice, ["child", "child", "actor", "judge", "raylet", "driver"], 8)


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
            time.sleep(dice.uniform(0.0, 2.0))
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
                time.sleep(dice.uniform(0.0, 2.0))
                cluster.lose(node)  # what is left of it
            if kind in ("power", "raylet"):
                cluster.join(node, GB200)
        assert current.wait(150) in (1, 3), current.said()
        assert_right(run, 4 * len(done))  # one node is two devices, and each may have had a cell in its second try
    print("killed:", *done)
    assert not [line for line in marked(run.mark).values() if "farm.child" in line]
