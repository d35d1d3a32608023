"""What the kill and signal checks share: a matrix whose every status is known, its processes, and what must hold of a
run whatever was killed in it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator

from farm_command import FarmCommand
from farm_process import FarmRun, marked

#: Ray's own two agents try for 60 s (a constant of Ray's) to tell a GCS that is gone of the raylet that is gone.
#: A worker that was just starting when its raylet died waits for it likewise; it serves nobody.
LINGERING = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE")
SKIPPED, INACCURATE, CRASHING = 65, 70, 75  # columns
#: kind of process -> what its command line has
KINDS = {"child": "farm.child", "actor": "ray::_RayDevice", "judge": "ray::Judge", "raylet": "raylet/raylet"}


def matrix(cells: int, wall_s: float = 0.1) -> str:
    return json.dumps(
        {
            "name": "killed",
            "op": "rms_norm",
            "axes": {"shape": [{"rows": 2, "hidden": [64 + i for i in range(cells)]}], "dtype": "float32"},
            "providers": ["farm"],
            "exclude": [{"hidden": SKIPPED, "reason": "not this one"}],
            "sim": {
                "default": {"time_us": 10, "wall_s": wall_s},
                "rules": [{"when": {"hidden": INACCURATE}, "error": 0.1}, {"when": {"hidden": CRASHING}, "exit": 3}],
            },
        }
    )


def of_kind(mark: str, kind: str) -> list[int]:
    """Processes of a run or cluster."""
    return sorted(p for p, line in marked(mark).items() if KINDS[kind] in line and "bash" not in line.split(" ")[0])


def kill_one(dice: random.Random, pids: list[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(dice.choice(pids), signal.SIGKILL)


def resumed(run: FarmRun) -> FarmCommand:
    words = ("resume", run.run_id, "--out", str(run.store.path), "--no-page")
    return FarmCommand(run.folder, run.store.path, run.run_id, *words).start()


@contextlib.contextmanager
def ended(run: FarmRun) -> Iterator[list[FarmCommand]]:
    """A list of what goes on with a run, all of it ended at the end."""
    found: list[FarmCommand] = []
    try:
        yield found
    finally:
        for one in found:
            one.end()


def assert_right(run: FarmRun, kills: int) -> None:
    """The run is complete; every cell has the status that its script gives it, but for those that were killed twice,
    which accuse nobody; nothing was concluded twice."""
    assert run.run.complete and not (run.run.dir / "writer.lock").exists()
    rows = {json.loads(row["dims"])["hidden"]: row for row in run.rows()}
    expected = dict.fromkeys(rows, "passed") | {SKIPPED: "skipped", INACCURATE: "inaccurate", CRASHING: "crashed"}
    wrong = {h: row for h, row in rows.items() if row["status"] != expected[h]}
    told = {h: (row["status"], row["fault_owner"], row["attempt"], row["reason"]) for h, row in wrong.items()}
    assert all(row["fault_owner"] == "infra" and row["status"] != "lost" for row in wrong.values()), told
    assert 2 * len(wrong) <= kills, told
    accused = {h for h, row in rows.items() if row["fault_owner"] == "kernel"}
    assert accused <= {INACCURATE, CRASHING}, accused
    assert set(Counter(e["row"]["cell_id"] for e in run.journal("result")).values()) == {1}
    starts = Counter((e["cell"], e["attempt"]) for e in run.journal("started"))
    assert max(starts.values()) == 1
    assert run.run.head["counts"] == dict(Counter(row["status"] for row in rows.values()))
