"""What the kill and signal checks share: a matrix whose every status is known, its processes, disturbances, and what
must hold of a run whatever disturbed it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from farm_command import FarmCommand
from farm_process import TOKENS, FarmRun, marked, wait_for

from farm.store import lock, spool

#: Ray's own two agents try for 60 s (a constant of Ray's) to tell a GCS that is gone of the raylet that is gone.
#: A worker that was just starting when its raylet died waits for it likewise; it serves nobody.  A supervisor ends
#: them; they outlive it where it is killed itself, and on clusters.
LINGERING = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE")
SKIPPED, INACCURATE, CRASHING = 65, 70, 75  # columns
#: kind of process -> what its command line has
KINDS = {
    "child": "farm.child",
    "actor": "ray::_RayDevice",
    "judge": "ray::Judge",
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HEARD = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}  # nohup around the checks is inherited


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


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(pid, signal.SIGKILL)


def kill_one(dice: random.Random, pids: list[int]) -> None:
    kill(dice.choice(pids))


def resumed(run: FarmRun) -> FarmCommand:
    words = ("resume", run.run_id, "--out", str(run.store.path), "--no-page")
    token = {"RAY_AUTH_TOKEN_PATH": TOKENS[run.address]} if run.address in TOKENS else {}
    return FarmCommand(run.folder, run.store.path, run.run_id, *words, environment=token).start(**HEARD)


@contextlib.contextmanager
def ended(run: FarmRun) -> Iterator[list[FarmCommand]]:
    """A list of what goes on with a run, all of it ended at the end."""
    found: list[FarmCommand] = []
    try:
        yield found
    finally:
        for one in found:
            one.end()


def listens(run: FarmRun) -> bool:
    """Whether the process that was started has its handlers; before that Python is still starting."""
    assert run.process is not None
    if run.process.poll() is not None:
        return True
    status = Path(f"/proc/{run.process.pid}/status").read_text(encoding="utf-8")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught & 1 << signal.SIGTERM - 1)


def signal_it(run: FarmRun, number: signal.Signals, *, to: str) -> None:
    """A signal to the process that was started, to its process group (a terminal, `kill -- -PGID`), or to each process
    that the run has (scancel, systemctl stop)."""
    wait_for("the handlers", lambda: listens(run))
    assert run.process is not None
    with contextlib.suppress(ProcessLookupError):  # it has ended
        if to == "group":
            os.killpg(run.process.pid, number)
        elif run.process.poll() is None:
            for pid in marked(run.mark) if to == "all" else [run.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def assert_interrupted(run: FarmRun, at: str) -> None:
    """A run that was signalled ends in bounded time with its true code, and leaves nothing."""
    code = run.wait(60)
    at = f"{at}: exit code {code}: {run.said()}"
    complete = bool(run.journal("planned")) and run.run.complete
    assert code == (run.run.head["exit_code"] if complete else 3), at
    assert "Traceback" not in run.said(), at
    assert_nothing_left(run)
    if run.journal("planned"):
        run.rows()  # planned = accounted for
        assert not accused(run), at


def assert_nothing_left(run: FarmRun) -> None:
    run.assert_nothing_left(60)
    assert not run.spool.exists(), run.said()


def accused(run: FarmRun) -> dict[int, str]:
    """Columns of the cells that accuse a kernel without a reason in the matrix."""
    rows = {json.loads(row["dims"])["hidden"]: row for row in run.rows()}
    wrong = {h: row for h, row in rows.items() if row["fault_owner"] == "kernel"}
    return {h: row["reason"] for h, row in wrong.items() if h not in (INACCURATE, CRASHING)}


def assert_right(run: FarmRun, kills: int = 0) -> None:
    """The run is complete; every cell has the status that its script gives it, but for those that were killed twice,
    which accuse nobody; nothing was concluded twice."""
    assert run.run.complete and not lock.holder(run.run.dir)
    rows = {json.loads(row["dims"])["hidden"]: row for row in run.rows()}
    expected = dict.fromkeys(rows, "passed") | {SKIPPED: "skipped", INACCURATE: "inaccurate", CRASHING: "crashed"}
    wrong = {h: row for h, row in rows.items() if row["status"] != expected[h]}
    told = {h: (row["status"], row["fault_owner"], row["attempt"], row["reason"]) for h, row in wrong.items()}
    assert all(row["fault_owner"] == "infra" and row["status"] != "lost" for row in wrong.values()), told
    assert 2 * len(wrong) <= kills, told
    assert not accused(run)
    assert set(Counter(e["row"]["cell_id"] for e in run.journal("result")).values()) == {1}
    starts = Counter((e["cell"], e["attempt"]) for e in run.journal("started"))
    assert max(starts.values()) == 1
    assert run.run.head["counts"] == dict(Counter(row["status"] for row in rows.values()))


def pause(dice: random.Random, seconds: float) -> None:
    time.sleep(dice.uniform(0.0, seconds))


#: More deaths of actors in one session would retire devices; the loop is not about a run without devices.
MOST_ACTORS = 2


class Disturbed:
    """A run, and the commands that resume it, whose processes are killed and signalled."""

    def __init__(self, run: FarmRun, dice: random.Random, later: list[FarmCommand]):
        self.run, self.dice, self.later = run, dice, later
        self.done: list[str] = []
        self.unswept = False  # a supervisor was killed: what it would have removed waits for the next farm
        self._begin(run)

    def _begin(self, current: FarmRun) -> None:
        self.current, self.actors, self.last_child, self.orphaned = current, 0, "", False

    def goes_on(self) -> bool:
        """Whether the run is not complete; where its command has ended, that was in order, and it is resumed."""
        assert self.current.process is not None
        if self.current.process.poll() is None:
            return True
        self.check_end()
        if self.run.run.complete:
            return False
        self.later.append(resumed(self.run))
        self._begin(self.later[-1])
        return True

    def check_end(self) -> None:
        code, at = self.current.wait(90), f"after {self.done}: {self.current.said()}"
        if code == -signal.SIGKILL:
            assert self.orphaned, at
        elif self.run.run.complete:
            assert code in (self.run.run.head["exit_code"], 3), at
        else:
            assert code == 3, at
        self.current.assert_nothing_left(90, but=LINGERING if self.orphaned else ())
        self.unswept = self.unswept or self.orphaned
        assert self.unswept or not self.run.spool.exists(), at
        self.run.rows()  # planned = accounted for, however it ended
        assert not accused(self.run), at

    def kill(self, kind: str) -> bool:
        """Kill a process of a kind; False where there is none, or none that may be killed now."""
        assert self.current.process is not None
        there = marked(self.current.mark)
        found = [p for p, line in there.items() if self._is(kind, p, line)]
        if not found:
            return False
        pid = self.dice.choice(sorted(found))
        self.orphaned = self.orphaned or pid == self.current.process.pid
        self.actors += KINDS["actor"] in there[pid]
        self.last_child = _device_of(there[pid]) or self.last_child
        kill(pid)
        return True

    def _is(self, kind: str, pid: int, line: str) -> bool:
        """A cell whose child dies twice, and no other, would rightly be called crashed: never one device's child in a
        row."""
        assert self.current.process is not None
        if (_device_of(line) or "none") == self.last_child or (KINDS["actor"] in line and self.actors == MOST_ACTORS):
            return False
        if kind in ("supervisor", "worker"):
            return " -m farm " in line and (pid == self.current.process.pid) == (kind == "supervisor")
        return kind == "any" or (KINDS[kind] in line and "bash" not in line.split(" ")[0])


def _device_of(line: str) -> str:
    """The device in a child's command line."""
    return line.partition("farm.child")[2][:60] if "farm.child" in line else ""


def random_order(dice: random.Random, kinds: list[str], kills: int, signals: int) -> list[str]:
    todo = [dice.choice(kinds) for _ in range(kills)] + ["signal"] * signals
    dice.shuffle(todo)
    return todo


def disturb(run: FarmRun, dice: random.Random, kinds: Sequence[str]) -> list[str]:
    """Kill a process of each of these kinds, or signal all of the run, at random moments until the run is complete or
    all is done; then let it finish.  What was done, in order."""
    todo = list(kinds)
    with ended(run) as later:
        run.wait_for("result")  # without a plan there is nothing to resume
        disturbed = Disturbed(run, dice, later)
        while todo and disturbed.goes_on():
            pause(dice, 1.0)
            kind = todo.pop(0)
            if kind == "signal":
                number, to = dice.choice(SIGNALS), dice.choice(["group", "all"])
                signal_it(disturbed.current, number, to=to)
                disturbed.done.append(f"{number.name} to {to}")
                disturbed.current.wait(60)
            elif disturbed.kill(kind):
                disturbed.done.append(kind)
                if kind in ("worker", "supervisor"):
                    disturbed.current.wait(60)
            else:  # none is there at this moment, or none will be
                todo.append(kind)
        for _ in range(5):  # what was killed last may yet end it
            disturbed.current.wait(180)
            if not disturbed.goes_on():
                break
        assert_right(run, len(disturbed.done))
        disturbed.current.assert_nothing_left(90, but=LINGERING if disturbed.orphaned else ())
        if disturbed.unswept:
            spool.sweep(run.spool.parent)
        assert not run.spool.exists()
    print("disturbed:", *disturbed.done)
    return disturbed.done
