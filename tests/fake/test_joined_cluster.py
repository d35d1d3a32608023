"""`--address HOST:PORT`: a cluster that was there before and goes on afterwards, also after a driver is killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from farm_process import FarmRun, marked, wait_for
from ray_head import ray_head

pytestmark = pytest.mark.ray
Farm = Callable[..., FarmRun]


def matrix(cells: int) -> str:
    return json.dumps(
        {
            "name": "joined",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"},
            "providers": ["farm"],
            "sim": {"default": {"time_us": 10, "wall_s": 0.05}},
        }
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address, mark of its processes) of a cluster of one node that offers two fakes by label and resource."""
    words = ("--num-cpus=2", "--labels=farm/backend=sim", '--resources={"farm_sim": 2}')
    with ray_head(tmp_path_factory.mktemp("cluster"), *words) as found:
        yield found


def workers(mark: str) -> dict[int, str]:
    """Actors and children of the farm in the cluster."""
    return {
        p: line
        for p, line in marked(mark).items()
        if line.startswith(("ray::_Ray", "ray::Judge")) or "farm.child" in line
    }


@pytest.mark.long
def test_a_run_joins_leaves_and_leaves_nothing(farm: Farm, cluster: tuple[str, str]) -> None:
    address, mark = cluster
    run = farm(matrix(60), address=address)
    assert run.wait() == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 60
    assert len(run.child_pids()) == 2
    wait_for("its actors are gone", lambda: not workers(mark), 60)
    assert not run.spool.exists()


def test_a_killed_driver_takes_its_actors_and_children_with_it(farm: Farm, cluster: tuple[str, str]) -> None:
    address, mark = cluster
    run = farm(matrix(400), address=address)
    wait_for("two children", lambda: sum("farm.child" in line for line in workers(mark).values()) == 2, 90)
    finished = run.wait_for("result", 4)
    assert run.process is not None
    run.process.kill()
    run.process.wait(timeout=20)
    wait_for("its actors and children are gone", lambda: not workers(mark), 60)
    run.assert_interrupted(finished)
    following = farm(matrix(4), address=address)
    assert following.wait() == 0, following.said()
    assert not run.spool.exists()
    assert not following.spool.exists()


def test_a_backend_that_the_cluster_lacks_is_refused(farm: Farm, cluster: tuple[str, str]) -> None:
    run = farm(matrix(2), address=cluster[0], backend="cpu")
    assert run.wait() == 2
    assert "backend cpu" in run.said() and "[cluster-backend-absent]" in run.said()
    assert not Path(run.store.path, "runs", run.run_id).exists()
