"""kill -9 of whatever can be killed, Ctrl-C and SIGTERM: nothing hangs, nothing stays, the journal has what was done.

A child is found by the pid it reported, its actor's process is its parent, and orphans by a mark in the environment.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import killing
import pytest
from farm_process import MARK, ROOT, FarmRun, is_dead, marked, parent_of, wait_for

Farm = Callable[..., FarmRun]
#: Ray's own two agents try for 60 s (a constant of Ray's) to tell a GCS that is gone of the raylet that is gone.
LINGERING = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
ADDRESSES = ["inline", pytest.param("local", marks=[pytest.mark.ray, pytest.mark.long])]


def matrix(cells: int, rules: Sequence[object] = (), **script: object) -> str:
    return json.dumps(
        {
            "name": "kills",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"},
            "providers": ["farm"],
            "sim": {"default": {"time_us": 10, "wall_s": 0.1, **script}, "rules": list(rules)},
        }
    )


def test_the_mark_finds_processes(farm: Farm) -> None:
    run = farm(matrix(30))
    run.wait_for("device_up", 2)
    found = marked(run.mark)
    assert set(run.child_pids().values()) <= set(found)
    assert run.process is not None
    assert run.process.pid in found
    assert os.getpid() not in found
    assert MARK not in os.environ


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_killed_child_is_replaced_and_its_cell_tried_again(farm: Farm, address: str) -> None:
    run = farm(matrix(24), address=address)
    run.wait_for("result", 3)
    pid = run.child_pids()["sim:0"]
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 24
    kills = [e for e in run.journal("ended") if e["owner"] == "infra"]
    assert all("SIGKILL" in e["reason"] or "before the cell began" in e["reason"] for e in kills)
    assert len(kills) <= 1  # none if the kill came between two cells
    assert run.journal("device_down") == []
    run.assert_nothing_left()
    assert not run.spool.exists()


@pytest.mark.ray
def test_a_killed_actor_is_replaced_and_nothing_is_lost(farm: Farm) -> None:
    run = farm(matrix(40, until_attempt=2, rules=[{"when": {"hidden": 74}, "hang": True}]), address="local")
    (stuck,) = wait_for("cell 10 starts", lambda: [e for e in run.journal("started") if e["cell"] == 10])
    child = run.child_pids()[stuck["device"]]
    actor = parent_of(child)
    assert "_RayDevice" in marked(run.mark)[actor]
    os.kill(actor, signal.SIGKILL)
    wait_for("the child of a dead actor dies, though it hangs", lambda: is_dead(child), 10)
    assert run.wait() == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 40
    assert run.rows()[10]["attempt"] == 2
    (down,) = run.journal("device_down")
    assert down["device"] == stuck["device"]
    assert "died" in down["reason"]
    assert len(run.journal("replaced")) == 1
    assert len(run.journal("device_up")) in (2, 3)  # the other may have done all before the new actor is up
    assert run.run.head["complete"]
    run.assert_nothing_left()


@pytest.mark.long
@pytest.mark.ray
def test_a_killed_judge_is_replaced_and_no_cell_notices(farm: Farm) -> None:
    run = farm(matrix(40), address="local")
    run.wait_for("result", 3)
    (judge,) = [pid for pid, line in marked(run.mark).items() if line.startswith("ray::Judge")]
    os.kill(judge, signal.SIGKILL)
    assert run.wait() == 0, run.said()
    assert [r["status"] for r in run.rows()] == ["passed"] * 40
    assert len(run.journal("judge_down")) == 1
    run.assert_nothing_left()
    assert not run.spool.exists()


@pytest.mark.parametrize(
    ("address", "number"),
    [
        pytest.param("inline", signal.SIGINT, id="inline-ctrl_c"),
        pytest.param("inline", signal.SIGTERM, id="inline-sigterm"),
        pytest.param("local", signal.SIGINT, id="local-ctrl_c", marks=[pytest.mark.ray, pytest.mark.long]),
    ],
)
def test_an_interrupt_ends_the_run_in_order(farm: Farm, address: str, number: signal.Signals) -> None:
    run = farm(matrix(400), address=address)
    finished = run.wait_for("result", 4)
    if number == signal.SIGINT:
        run.ctrl_c()
    else:
        assert run.process is not None
        run.process.terminate()
    assert run.wait() == 3, run.said()
    run.assert_interrupted(finished)
    run.assert_nothing_left()
    assert not run.spool.exists()
    assert run.journal()[-1]["event"] == "interrupted"
    said = run.said()
    assert "Traceback" not in said
    lost = sum(r["status"] == "lost" for r in run.rows())
    assert f"interrupted: {lost} cells " in said
    page = Path(said.rpartition("page: ")[2].splitlines()[0])
    assert "lost" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("kinds", [("child", "worker", "signal"), ("supervisor", "signal")])
def test_a_run_that_is_killed_and_signalled_ends_as_if_undisturbed(farm: Farm, kinds: Sequence[str]) -> None:
    """`make soak` has fifty kills and twenty signals."""
    run = farm(killing.matrix(120), popen=killing.HEARD)
    assert len(killing.disturb(run, random.Random(str(kinds)), kinds)) == len(kinds)


def test_an_interrupt_reaches_a_run_whose_cells_hang(farm: Farm) -> None:
    run = farm(matrix(4, hang=True))
    run.wait_for("started", 2)
    run.ctrl_c()
    assert run.wait() == 3
    run.assert_nothing_left()
    assert [r["status"] for r in run.rows()] == ["lost"] * 4


@pytest.mark.long
def test_a_child_that_hangs_dies_with_a_killed_driver(farm: Farm) -> None:
    run = farm(matrix(4, hang=True))
    run.wait_for("started", 2)
    assert run.process is not None
    run.process.kill()
    run.process.wait(timeout=20)
    run.assert_nothing_left(10)


@pytest.mark.long
def test_an_impatient_second_interrupt_ends_it_too(farm: Farm) -> None:
    run = farm(matrix(400))
    run.wait_for("result", 2)
    run.ctrl_c()
    run.ctrl_c()
    assert run.wait() == 3
    run.assert_nothing_left()
    assert not (run.run.dir / "run.json").exists()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_killed_driver_leaves_no_process_and_the_next_run_sweeps_its_spool(farm: Farm, address: str) -> None:
    run = farm(matrix(400), address=address)
    finished = run.wait_for("result", 4)
    assert run.spool.is_dir()
    assert run.process is not None
    run.process.kill()
    run.process.wait(timeout=20)
    run.assert_nothing_left(but=LINGERING)
    run.assert_interrupted(finished)
    following = farm(matrix(1))
    assert following.wait() == 0
    # Swept by it, or by another farm of this host: a test beside this one may have run one.
    assert not run.spool.exists()
    assert not following.spool.exists()


@pytest.mark.long
def test_a_running_runs_spool_is_not_swept(farm: Farm) -> None:
    run = farm(matrix(400))  # it must not end before the other has
    run.wait_for("result", 1)
    other = farm(matrix(1))
    assert other.wait() == 0
    assert run.spool.is_dir()
    after = run.wait_for("result", len(run.journal("result")) + 10)
    assert {e["row"]["status"] for e in after} == {"passed"}
    run.ctrl_c()
    assert run.wait() == 3


def test_devices_whose_children_are_never_ready_are_quarantined_and_the_run_stops(farm: Farm) -> None:
    run = farm(matrix(3), "--set", "deadlines.spawn=0.01")
    assert run.wait() == 3, run.said()
    assert [r["status"] for r in run.rows()] == ["lost"] * 3
    assert {e["device"] for e in run.journal("retired")} == {"sim:0", "sim:1"}
    assert 2 * 2 <= len(run.journal("device_down")) <= 2 * 3
    assert "the child was not ready within 0.01 s" in run.said()
    assert "[run-devices-out]" in run.said() and not (run.run.dir / "run.json").exists()  # it can be resumed
    run.assert_nothing_left()


def test_an_environment_that_cannot_serve_is_not_tried_again(farm: Farm, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libdevice.so.3: cannot open shared object file')\n")
    run = farm(matrix(3), "--devices", "2", backend="cpu", environment={"PYTHONPATH": f"{broken}:{ROOT}"})
    assert run.wait() == 3, run.said()
    assert [r["status"] for r in run.rows()] == ["lost"] * 3
    assert len(run.journal("device_down")) == 2
    assert "libdevice.so.3" in run.said()


def test_a_child_that_dies_before_it_is_ready_gives_its_last_words(farm: Farm, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("import os, sys\nprint('no memory', file=sys.stderr, flush=True)\nos._exit(9)\n")
    run = farm(matrix(3), "--devices", "1", backend="cpu", environment={"PYTHONPATH": f"{broken}:{ROOT}"})
    assert run.wait() == 3, run.said()
    assert "the child ended before it was ready (exit code 9); last output: no memory" in run.said()
    assert [e["reason"] for e in run.journal("retired")] != []


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_a_killed_part_of_ray_is_the_farms_fault_and_the_run_says_so(farm: Farm, part: str) -> None:
    """Left to itself, Ray would end the driver with exit code 1, which means findings; without its GCS after 60 s.
    Where Ray is quicker than the farm, the supervisor says so."""
    run = farm(matrix(200), address="local")
    finished = run.wait_for("result", 3)
    assert run.process is not None
    parts = [p for p, line in marked(run.mark).items() if line.split(" ")[0].endswith(f"/{part}")]
    assert len(parts) == 1
    os.kill(parts[0], signal.SIGKILL)
    assert run.wait(60) == 3, run.said()
    assert any(f"[{word}]" in run.said() for word in ("raylet-died", "gcs-died", "run-ended-unannounced")), run.said()
    run.assert_nothing_left()
    assert not run.spool.exists()
    assert not (run.run.dir / "run.json").exists()
    assert len([r for r in run.rows() if r["status"] == "passed"]) >= len(finished)
    assert (run.store.pages / f"run-{run.run_id}.html").is_file()


def test_a_reader_that_leaves_does_not_end_the_run(farm: Farm) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = farm(matrix(3), popen={"preexec_fn": lambda: (os.dup2(writing, 1), os.dup2(writing, 2))})
    os.close(writing)
    assert run.wait() == 0
    assert run.run.complete


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_closed_output_does_not_end_the_run(farm: Farm, closed: tuple[int, ...]) -> None:
    run = farm(matrix(2), popen={"preexec_fn": lambda: [os.close(d) for d in closed]})
    assert run.wait() == 0
    assert run.run.complete


def test_a_hang_up_ends_the_run_in_order(farm: Farm) -> None:
    # The suite itself may run under nohup, which a farm would inherit, and rightly go on.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}
    run = farm(matrix(200), popen=listen)
    finished = run.wait_for("result", 3)
    assert run.process is not None
    run.process.send_signal(signal.SIGHUP)
    assert run.wait() == 3, run.said()
    run.assert_interrupted(finished)


@pytest.mark.long
def test_two_stores_may_have_a_run_of_one_id(farm: Farm) -> None:
    first = farm(matrix(40))
    first.wait_for("result", 1)
    second = farm(matrix(3), f"--run-id={first.run_id}")
    assert second.wait() == 0, second.said()
    assert first.wait() == 0, first.said()
    assert {r["status"] for r in first.rows()} == {"passed"}


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("cache", ["/proc/nowhere", "full"])
def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    farm: Farm, tmp_path: Path, address: str, cache: str
) -> None:
    if cache == "full":
        cache = str(tmp_path / "file")
        Path(cache).write_text("a file where the folder should be")
    run = farm(matrix(3), address=address, environment={"FARM_CACHE": cache})
    assert run.wait() == 0, run.said()


def test_a_disk_that_fills_up_is_one_sentence_and_nothing_hangs(farm: Farm) -> None:
    """A limit on file sizes stands in for the disk: the journal alone grows that far."""

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    run = farm(matrix(60), popen={"preexec_fn": small_disk})
    assert run.wait() == 3, run.said()
    said = run.said()
    assert "journal cannot be written (File too large); the run stops here" in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    run.assert_nothing_left()
    assert not run.spool.exists()
    assert not (run.run.dir / "run.json").exists()
    assert {r["status"] for r in run.rows()} <= {"passed", "lost"}


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "..", "", "x" * 200, "-x", "a b"])
def test_a_run_id_that_would_leave_the_store_is_refused(farm: Farm, name: str) -> None:
    run = farm(matrix(1), f"--run-id={name}")
    assert run.wait(30) == 2
    assert "--run-id" in run.said()
    assert not run.store.path.exists()
