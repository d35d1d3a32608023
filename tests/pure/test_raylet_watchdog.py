"""A raylet that died while a call into Ray does not return: the process ends with the farm's own exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farm.cluster import raylet_watchdog
from farm.process import procfs

STUCK = """
import subprocess, sys, time
sys.path.insert(0, {root!r})
from farm.cluster import raylet_watchdog
raylet_watchdog.LOOK_SECONDS = 0.05
part = {part!r}
dead = subprocess.Popen([sys.executable, "-c", ""])
dead.wait()
watch = raylet_watchdog.RayletWatchdog({{part: dead.pid}}, "r1", seconds={seconds})
{settle}
time.sleep({sleep})
"""
ROOT = str(Path(__file__).resolve().parents[2])


def stuck(part: str, settle: str, seconds: float, sleep: float) -> subprocess.CompletedProcess[str]:
    code = STUCK.format(root=ROOT, part=part, settle=settle, seconds=seconds, sleep=sleep)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("part", [raylet_watchdog.RAYLET, raylet_watchdog.GCS])
def test_a_call_that_does_not_return_ends_with_3_and_a_sentence(part: str) -> None:
    begun = time.monotonic()
    done = stuck(part, "", 0.2, 50)
    assert time.monotonic() - begun < 45
    assert done.returncode == 3 and done.stderr.startswith(
        f"farm: {raylet_watchdog.died(part)}, and a call has not returned for 0.2 s"
    )
    assert done.stderr.endswith(f"farm resume r1 [{part.lower()}-died-unseen]\n") and done.stderr.count("\n") == 1


def test_who_has_seen_it_is_left_alone() -> None:
    done = stuck("raylet", "watch.settle()", 0.2, 1)
    assert (done.returncode, done.stderr) == (0, "")


def test_while_it_lives_nothing_is_ended() -> None:
    ended: list[int] = []
    raylet_watchdog.LOOK_SECONDS, look = 0.01, raylet_watchdog.LOOK_SECONDS
    try:
        watch = raylet_watchdog.RayletWatchdog({"raylet": os.getpid()}, "r1", 0.0, ended.append)
        time.sleep(0.3)
        watch.settle()
    finally:
        raylet_watchdog.LOOK_SECONDS = look
    assert ended == [] and procfs.alive(os.getpid()) and "test_raylet_watchdog.py" not in watch._stuck()


def test_the_parts_of_ray_are_found_by_their_names() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"  # it is told by its name once it runs, and ends with us
    command = ["/ray/gcs_server", "-c", code, "--node_id=abc0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, executable=sys.executable, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert raylet_watchdog.parts("abc0", own=False) == {"raylet": process.pid}
        assert raylet_watchdog.parts("abc", own=True) == {"GCS": process.pid}
        assert raylet_watchdog.parts("abc", own=False) == {}
