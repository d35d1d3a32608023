"""A command in a fork: its exit code is what it announced, an interrupt has a bound, and nothing of it is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farm.process import procfs
from farm.process.supervisor import END_SECONDS, FAILED, LEAVE_SECONDS, Course

ROOT = str(Path(__file__).resolve().parents[2])
MAIN = """
import ctypes, os, signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # of a nohup around the tests
sys.path.insert(0, {root!r})
from farm.process import interrupts, supervisor
supervisor.END_SECONDS = {bound}
def say(*words): print(*words, flush=True)
def until(seconds=60):
    end = time.monotonic() + seconds
    while not interrupts.noted_within() and time.monotonic() < end: time.sleep(0.01)
def work():
{work}
explain = lambda outcome: say(outcome.kind, outcome.how, dict(outcome.facts).get("run"))
sys.exit(supervisor.run(work, explain, {secrets}))
"""


def start(work: str, bound: float = 30.0, secrets: str = "()") -> subprocess.Popen[str]:
    text = "\n".join(f"    {line}" for line in work.splitlines())
    code = MAIN.format(root=ROOT, work=text, bound=bound, secrets=secrets)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], text=True, start_new_session=True, **pipes)


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """(exit code, words that were said)."""
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out.split()


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("return 0", 0, []),
        ("return 1", 1, []),
        ("sys.exit(2)", 2, []),
        ("supervisor.leave(4)", 4, []),
        ("sys.exit(15)", 3, []),  # a handler of Ray's, of SIGTERM
        ("sys.exit('why')", 3, []),
        # what Ray does to a process whose raylet or GCS is gone
        ("os._exit(1)", 3, ["unannounced", "exit", "code", "1", "None"]),
        ("ctypes.CDLL(None)._exit(1)", 3, ["unannounced", "exit", "code", "1", "None"]),
        ("supervisor.running(run='r1')\nctypes.CDLL(None)._exit(0)", 3, ["unannounced", "exit", "code", "0", "r1"]),
        ("supervisor.running(run='r1')\nos.abort()", 3, ["unannounced", "signal", "6", "(SIGABRT)", "r1"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", 3, ["unannounced", "signal", "9", "(SIGKILL)", "None"]),
        ("supervisor.concluded(1, complete=True)\nos._exit(0)", 1, ["page", "missing", "None"]),
        ("supervisor.concluded(3, complete=False)\nos._exit(1)", 3, ["unannounced", "exit", "code", "1", "None"]),
        ("import atexit; atexit.register(os._exit, 1)\nreturn 4", 4, []),
        # a library that hangs while it starts: once more, once only, and never after the run has begun
        ("say('go')\nif supervisor.may_restart(): supervisor.restart()\nreturn 4", 4, ["go", "go"]),
        ("say('go')\nsupervisor.restart()", 3, ["go", "go"]),
        ("say('go')\nsupervisor.running(run='r1')\nsupervisor.restart()", 3, ["go"]),
    ],
)
def test_the_exit_code_is_what_the_worker_announced(work: str, code: int, said: list[str]) -> None:
    assert ended(start(work)) == (code, said)


def test_a_secret_is_there_for_the_second_worker_and_in_no_environment_that_others_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORD", "secret")
    lines = (
        "say(os.environ['WORD'])",
        "if supervisor.may_restart(): supervisor.restart()",
        "say('WORD=secret' in open(f'/proc/{os.getppid()}/environ').read())",
    )
    process = start("\n".join((*lines, "return 0")), secrets='("WORD",)')
    assert ended(process) == (0, ["secret", "secret", "False"])


LOOSE = """
inner = "import time; print('there', flush=True); time.sleep(600)"
outer = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", outer])
"""


@pytest.mark.parametrize("end", ["return 0", "os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_orphans_end_with_the_command(end: str) -> None:
    """The pipe of what the worker printed is open as long as one of them lives."""
    code, said = ended(start(f"{LOOSE}\ntime.sleep(0.5)\n{end}"))
    assert said[:1] in (["there"], ["unannounced"], []) and code == (0 if end == "return 0" else 3)


@pytest.mark.parametrize("end", ["return 0", "os._exit(1)"])
def test_a_folder_is_removed_when_nobody_can_make_it_anew(tmp_path: Path, end: str) -> None:
    """What an orphan writes while the worker ends, as an actor does whose raylet is gone."""
    folder = tmp_path / "spool"
    inner = f"import os\nprint('there', flush=True)\nwhile True: os.makedirs({str(folder)!r}, exist_ok=True)"
    begin = f"p = subprocess.Popen([sys.executable, '-c', {inner!r}], stdout=subprocess.PIPE)\np.stdout.readline()"
    ended(start(f"supervisor.removes({str(folder)!r})\n{begin}\n{end}"))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGTERM, False)]
)
@pytest.mark.parametrize(
    ("work", "bound", "said"),
    [
        ("say('go')\ntime.sleep(600)", 30.0, ["interrupted", "None"]),  # too early to end in order
        ("supervisor.running(run='r1')\nsay('go')\nuntil()\nsay('ends')\nreturn 3", 30.0, ["ends"]),
        ("supervisor.running(run='r1')\nsay('go')\ntime.sleep(600)", 0.3, ["interrupted", "r1"]),
    ],
)
def test_an_interrupt(number: signal.Signals, group: bool, work: str, bound: float, said: list[str]) -> None:
    process = start(work, bound)
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    (os.killpg if group else os.kill)(process.pid, number)
    assert ended(process) == (3, said)


def test_the_worker_of_a_killed_supervisor_ends_too() -> None:
    process = start("say(os.getpid())\ntime.sleep(600)")
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.kill()
    assert ended(process)[0] == -9
    end = time.monotonic() + 30
    while procfs.alive(worker):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_in_any_order_the_course_ends_in_time_and_with_a_true_code() -> None:
    """Random words, signals and times: who was interrupted is killed in time, a last word is the exit code, a complete
    run has its own, and nothing else is ever 1."""
    for seed in range(2000):
        dice, course, now, signals, asked = random.Random(seed), Course(), 0.0, [], []
        for _ in range(dice.randrange(6)):
            now += dice.uniform(0, 5)
            kind = dice.choice(["running", "concluded", "leaves", "again", "signal", "signal"])
            if course.kill_at is not None and now >= course.kill_at:
                break
            if kind == "signal":
                handed = course.signalled(now)
                signals.append(now)
                assert not (handed and asked)
                asked += [now] if handed else []
                assert handed or course.kill_at == now
            elif course.code is None:
                complete = dice.random() < 0.5
                course.told({"event": kind, "code": dice.choice([0, 1, 3, 4]), "complete": complete, "run": "r1"}, now)
        if signals:
            assert course.kill_at is not None and course.kill_at <= max(now, signals[0]) + max(
                END_SECONDS, LEAVE_SECONDS
            )
        outcome = course.outcome(dice.choice([0, 1, -9, -6]))
        if course.again and not signals:
            assert outcome.kind == "again"
        elif course.code is not None:
            assert (outcome.code, outcome.kind) == (course.code, "announced")
        elif course.concluded and course.concluded["complete"]:
            assert (outcome.code, outcome.kind) == (course.concluded["code"], "page missing")
        else:
            assert outcome.code == FAILED and outcome.kind == ("interrupted" if signals else "unannounced")
