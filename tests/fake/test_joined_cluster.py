"""`--address HOST:PORT`: a cluster that was there before and goes on afterwards, also after a driver is killed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from farm_process import MARK, ROOT, FarmRun, marked, wait_for

pytestmark = pytest.mark.ray
Farm = Callable[..., FarmRun]


def matrix(cells: int) -> str:
    return json.dumps({
        "name": "joined", "op": "rms_norm",
        "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"},
        "providers": ["farm"], "sim": {"default": {"time_us": 10, "wall_s": 0.05}},
    })  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address, mark of its processes) of a cluster of one node that offers two fakes by label and resource."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mark = secrets.token_hex(8)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "FARM_"))}
    # a folder of its own, or `--address auto` of others on this host would find this cluster; short, for its sockets
    own = tempfile.mkdtemp(prefix="ray-")
    environment = {**clean, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": own,
                   "PYTHONPATH": str(ROOT), MARK: mark}  # fmt: skip
    log = (tmp_path_factory.mktemp("cluster") / "ray.txt").open("wb")
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}", "--num-cpus=2",
         "--include-dashboard=false", "--labels=farm/backend=sim", '--resources={"farm_sim": 2}',
         f"--object-store-memory={80 << 20}", "--disable-usage-stats", "--node-ip-address=127.0.0.1"],
        env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip

    def answers() -> bool:
        assert head.poll() is None, "ray start ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return any("raylet" in line for line in marked(mark).values())
        return False

    try:
        wait_for("the cluster answers", answers, 60)
        yield f"127.0.0.1:{port}", mark
    finally:
        for pid in marked(mark):  # not asked to end: that takes Ray 20 seconds
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait(timeout=20)
        log.close()
        shutil.rmtree(own, ignore_errors=True)


def workers(mark: str) -> dict[int, str]:
    """Actors and children of the farm in the cluster."""
    return {p: line for p, line in marked(mark).items() if line.startswith(("ray::_Ray", "ray::Judge")) or
            "farm.child" in line}  # fmt: skip


def test_a_run_joins_leaves_and_leaves_nothing(farm: Farm, cluster: tuple[str, str]) -> None:
    address, mark = cluster
    run = farm(matrix(60), address=address)
    assert run.wait() == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 60
    assert len(run.child_pids()) == 2
    wait_for("its actors are gone", lambda: not workers(mark), 20)
    assert not run.spool.exists()


def test_a_killed_driver_takes_its_actors_and_children_with_it(farm: Farm, cluster: tuple[str, str]) -> None:
    address, mark = cluster
    run = farm(matrix(400), address=address)
    wait_for("two children", lambda: sum("farm.child" in line for line in workers(mark).values()) == 2, 30)
    finished = run.wait_for("result", 4)
    assert run.process is not None
    run.process.kill()
    run.process.wait(timeout=20)
    wait_for("its actors and children are gone", lambda: not workers(mark), 30)
    run.assert_interrupted(finished)
    following = farm(matrix(4), address=address)
    assert following.wait() == 0, following.said()
    assert not run.spool.exists()
    assert not following.spool.exists()


def test_a_backend_that_the_cluster_lacks_is_refused(farm: Farm, cluster: tuple[str, str]) -> None:
    run = farm(matrix(2), address=cluster[0], backend="cpu")
    assert run.wait() == 2
    assert "backend cpu: no such device here (there are: sim)" in run.said()
    assert not Path(run.store.path, "runs", run.run_id).exists()
