"""Processes that die, hang, flood, close their pipe, ignore SIGTERM or leave others behind: every wait ends, and so
does everything that was started."""

from __future__ import annotations

import ast
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farm.deadline import Deadline
from farm.process import command, host, proc_entries, procfs
from farm.process.group import ProcessGroup, describe_exit
from farm.process.line_process import ChildDied, ChildLied, ChildTimedOut, LineProcess
from farm.process.steps import ProbeResult, run_steps

Start = Callable[..., LineProcess]
#: Forks a process that holds the pipes and writes its pid to the file $PID; in a session of its own where told to.
LEAVES = """
import os, sys, time
def leave(own_session):
    if os.fork() == 0:
        if own_session: os.setsid()
        with open(os.environ["PID"] + ".new", "w") as file: file.write(str(os.getpid()))
        os.rename(os.environ["PID"] + ".new", os.environ["PID"])
        time.sleep(60)
        os._exit(0)
    while not os.path.exists(os.environ["PID"]): time.sleep(0.01)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running = []

    def started(code: str, **how: object) -> LineProcess:
        env = {**os.environ, "PID": str(tmp_path / "pid")}
        running.append(LineProcess([sys.executable, "-u", "-c", code], env=env, **how))  # type: ignore[arg-type]
        return running[-1]

    yield started
    for process in running:
        process.close()


def left_behind(tmp_path: Path) -> int:
    return int((tmp_path / "pid").read_text())


def ends(pid: int, seconds: float = 10.0) -> bool:
    deadline = Deadline(seconds)
    while procfs.alive(pid) and not deadline.expired:
        time.sleep(0.01)
    return not procfs.alive(pid)


# A process that speaks lines


def test_lines_go_both_ways_and_prints_go_to_the_log(start: Start) -> None:
    child = start(
        "import sys\nfor line in sys.stdin: print('log', file=sys.stderr); print(line.strip()[::-1])", orders=True
    )
    child.write(b"abc\n")
    assert child.read(Deadline(20)) == b"cba"
    mark = child.log_size
    child.write(b"de\nfg\n")
    assert [child.read(Deadline(20)), child.read(Deadline(20))] == [b"ed", b"gf"]
    assert child.log(100) == "log\n" * 3 and child.log(100, since=mark) == "log\n" * 2 and child.log(3) == "og\n"
    assert child.alive and child.code is None
    child.close()
    assert child.code is not None and child.closed and child.log(100) == ""


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.abort()", -signal.SIGABRT), ("pass", 0)])
def test_one_that_dies_is_heard_to_the_end_and_its_code_told(start: Start, end: str, code: int) -> None:
    child = start(f"import os, sys\nprint('a'); print('b'); {end}")
    assert [child.read(Deadline(20)), child.read(Deadline(20))] == [b"a", b"b"]
    with pytest.raises(ChildDied) as died:
        child.read(Deadline(20))
    assert died.value.code == code and str(died.value) == describe_exit(code)


def test_one_that_hangs_costs_its_deadline(start: Start) -> None:
    child = start("import time; time.sleep(60)")
    begun = time.monotonic()
    with pytest.raises(ChildTimedOut):
        child.read(Deadline(0.3))
    assert 0.25 < time.monotonic() - begun < 10 and child.alive


def test_a_line_that_never_ends_costs_the_deadline_or_is_refused(start: Start) -> None:
    slow = start("import sys, time\nwhile True: sys.stdout.write('x'); sys.stdout.flush(); time.sleep(0.01)")
    with pytest.raises(ChildTimedOut):
        slow.read(Deadline(0.5))
    assert slow.has_spoken
    flood = start("import os\nwhile True: os.write(1, b'x' * 65536)", longest=1 << 20)
    with pytest.raises(ChildLied, match="more than 1 MiB"):
        flood.read(Deadline(20))


def test_a_flood_of_lines_is_read_a_bounded_piece_at_a_time(start: Start) -> None:
    flood = start("import os\nwhile True: os.write(1, b'line\\n' * 10000)")
    assert flood.read(Deadline(20)) == b"line"
    assert len(flood.waiting()) < (4 << 20) // 5
    assert flood.kill() and flood.code == -signal.SIGKILL


def test_one_that_closes_its_pipe_and_goes_on_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.process.line_process.END_SECONDS", 0.3)
    child = start("import os, time; os.close(1); time.sleep(60)")
    with pytest.raises(ChildLied, match="continued to run"):
        child.read(Deadline(20))
    assert child.code == -signal.SIGKILL and child.at_end


def test_an_order_that_nobody_can_read_tells_of_the_end(start: Start) -> None:
    child = start("raise SystemExit(5)", orders=True)
    child.wait(20)
    with pytest.raises(ChildDied, match="exit code 5"):
        child.write(b"x\n")


def test_an_order_that_nobody_reads_costs_its_deadline(start: Start) -> None:
    """A pipe takes 64 KiB without a reader."""
    child = start("import time; time.sleep(60)", orders=True)
    with pytest.raises(ChildTimedOut):
        child.write(b"x" * (1 << 20), 0.3)
    slow = start("import sys, time; time.sleep(0.3); print(len(sys.stdin.readline()))", orders=True)
    slow.write(b"x" * (1 << 20) + b"\n")
    assert slow.read(Deadline(20)) == b"1048577"


def test_one_that_holds_the_pipe_is_not_waited_for_and_ends_with_the_group(start: Start, tmp_path: Path) -> None:
    child = start(LEAVES + "leave(False); print('said'); os._exit(4)")
    assert child.read(Deadline(20)) == b"said"
    with pytest.raises(ChildDied, match="exit code 4"):
        child.read(Deadline(20))
    assert procfs.alive(left_behind(tmp_path))
    assert child.kill() and ends(left_behind(tmp_path))


def test_what_is_waiting_is_taken_without_a_wait(start: Start) -> None:
    child = start("import sys; print('a\\nb'); sys.stdin.read()", orders=True)
    deadline = Deadline(20)
    found: list[bytes] = []
    while len(found) < 2 and not deadline.expired:
        found += child.waiting()
    assert found == [b"a", b"b"] and child.waiting() == [] and not child.at_end and not child.has_spoken


# A group


def test_sigterm_comes_first_and_sigkill_for_one_that_ignores_it(start: Start) -> None:
    obeys = start("import time; print('up'); time.sleep(60)")
    obeys.read(Deadline(20))
    assert obeys.kill(grace=20) and obeys.code == -signal.SIGTERM
    stubborn = start("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)")
    stubborn.read(Deadline(20))
    assert stubborn.kill(grace=0.2) and stubborn.code == -signal.SIGKILL
    assert stubborn.kill()  # it is gone, and stays so


def test_an_interrupt_of_everything_leaves_no_traceback_of_one_that_is_still_importing(start: Start) -> None:
    default = "import os, signal; signal.signal(2, signal.default_int_handler); os.kill(os.getpid(), 2); "
    child = start(default + "os.system('echo still here')")
    assert child.read(Deadline(20)) == b"still here" and child.wait(20) == 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())  # only what was started is deaf
    assert ProcessGroup([sys.executable, "-c", default]).wait(20) not in (0, None)


def test_exit_codes_are_seen_though_sigchld_is_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert ProcessGroup(["sh", "-c", "exit 9"]).wait(20) == 9
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_exits_in_words() -> None:
    assert [describe_exit(c) for c in (3, -11, -200)] == ["exit code 3", "signal 11 (SIGSEGV)", "signal 200"]


# A command


def sh(script: str, seconds: float = 20.0, **how: object) -> command.Completed:
    return command.run(["sh", "-c", script], seconds, **how)  # type: ignore[arg-type]


def test_a_commands_output_and_code() -> None:
    done = sh("echo out; echo err >&2; exit 3")
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n")
    assert sh("kill -9 $$").code == -9
    assert sh("cat").out == ""  # nothing to read
    assert sh("exec >&- 2>&-; sleep 0.2; exit 4").code == 4
    assert sh(r"printf '\377'").out == "\ufffd"
    with pytest.raises(OSError):
        command.run(["/nowhere/at/all"], 1)


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    done = sh(f"echo begun; sleep 60 & echo $! > {tmp_path}/pid; wait", 0.5)
    assert done.code is None and done.out == "begun\n"
    assert ends(left_behind(tmp_path))


def test_a_command_is_not_waited_for_by_what_it_left(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = sh(f"sleep 60 & echo $! > {tmp_path}/pid; echo done")
    assert done.code == 0 and done.out == "done\n" and time.monotonic() - begun < 15
    assert ends(left_behind(tmp_path))


def test_a_flood_is_bounded() -> None:
    done = sh("yes | head -c 3000000; echo end >&2", longest=1000)
    assert (len(done.stdout), done.err, done.code) == (1000, "end\n", 0)
    assert sh("yes", 0.5, longest=10).code is None


# Steps


def test_each_step_that_ends_the_process_costs_itself(tmp_path: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(
        "import json, os, sys, time\n"
        "for step in sys.argv[1:]:\n"
        "    print(json.dumps({'step': step, 'ended': 'begun'}), 'noise of a client', '{', sep='\\n', flush=True)\n"
        "    if step == 'dies': os.abort()\n"
        "    if step == 'hangs': time.sleep(60)\n"
        "    print(json.dumps({'step': step, 'ended': 'ok', 'text': step}), flush=True)\n"
    )
    found = run_steps(["a", "dies", "b", "hangs", "c"], [sys.executable, str(script)], step_s=1.0)
    assert {s: r.text for s, r in found.items() if r.ok} == {"a": "a", "b": "b", "c": "c"}
    assert found["dies"] == ProbeResult("died", "signal 6 (SIGABRT)") and found["hangs"] == ProbeResult("hung", "1 s")


@pytest.mark.parametrize("code", ["pass", "import sys; sys.exit(3)"])
def test_a_process_that_says_nothing_costs_a_step_each(code: str) -> None:
    found = run_steps(["a", "b"], [sys.executable, "-c", code])
    assert {r.ended for r in found.values()} == {"died"} and set(found) == {"a", "b"}


def test_an_end_after_the_last_step_blames_nobody(tmp_path: Path) -> None:
    code = 'import sys; print(\'{"step": "a", "ended": "ok"}\'); sys.exit(7)'
    assert run_steps(["a"], [sys.executable, "-c", code]) == {"a": ProbeResult("ok")}


# /proc


def test_a_process_is_found_by_its_words_and_killed_by_its_mark(tmp_path: Path) -> None:
    env = {**os.environ, "PID": str(tmp_path / "pid"), "TEST_MARK": str(tmp_path)}
    group = ProcessGroup([sys.executable, "-c", LEAVES + "leave(True); time.sleep(60)", f"word-{tmp_path}"], env=env)
    try:
        deadline = Deadline(20)
        while not (tmp_path / "pid").exists() and not deadline.expired:
            time.sleep(0.01)
        other = left_behind(tmp_path)
        assert procfs.find(lambda words: f"word-{tmp_path}" in words) in (group.pid, other)
        assert procfs.find(lambda words: f"word-{tmp_path}x" in words) is None
        assert procfs.parent(other) == group.pid and procfs.started(other).isdecimal()
        assert group.kill() and procfs.alive(other)  # it has a session of its own
        procfs.kill_marked("TEST_MARK", f"{tmp_path}x")
        assert procfs.alive(other)
        procfs.kill_marked("TEST_MARK", str(tmp_path))
        assert ends(other)
    finally:
        group.close()


def test_what_is_gone_has_no_answer() -> None:
    group = ProcessGroup(["true"])
    deadline = Deadline(20)
    while procfs.alive(group.pid) and not deadline.expired:  # a zombie, until somebody waits for it
        time.sleep(0.01)
    assert not procfs.alive(group.pid) and procfs.started(group.pid)
    assert group.wait(20) == 0
    for pid in (group.pid, 2**30, 2**70):
        assert (procfs.alive(pid), procfs.started(pid), procfs.parent(pid)) == (False, "", None)
        assert host.process_name(pid) == ""


def test_facts_about_a_planted_host(tmp_path: Path) -> None:
    for name, text in (
        ("meminfo", "MemTotal:  8 kB\nMemAvailable:   4 kB\n"),
        ("self/cgroup", "1:x:/y\n0::/user.slice\n"),
        ("sys/kernel/core_pattern", "|/bin/x\n"),
    ):
        (tmp_path / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / name).write_text(text)
    assert host.memory(tmp_path) == {"MemTotal": 8192, "MemAvailable": 4096}
    assert host.cgroup(tmp_path) == "/user.slice" and host.kernel_setting("core_pattern", tmp_path) == "|/bin/x"
    assert (host.memory(tmp_path / "x"), host.cgroup(tmp_path / "x")) == ({}, "")
    assert host.pid_namespace().startswith("pid:[") and len(host.boot()) == 36 and host.processor()


# One that is kept from running


def test_one_that_is_stopped_is_seen_to_be(start: Start) -> None:
    child = start("print('up')\nimport time\ntime.sleep(60)")
    assert child.read(Deadline(20)) == b"up" and child.suspended is None
    with pytest.raises(ChildTimedOut):
        child.read(Deadline(0.3))
    assert child.suspended is None, "who only waits is not stopped"
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(ChildTimedOut):
        child.read(Deadline(0.5))
    assert child.suspended is not None and "stopped by a signal" in child.suspended.why and not child.suspended.frozen
    os.kill(child.pid, signal.SIGCONT)
    with pytest.raises(ChildTimedOut):
        child.read(Deadline(0.3))
    assert child.suspended is not None, "what was seen while it was waited for stays until its user has seen to it"


@pytest.mark.parametrize(
    ("groups", "file", "text", "frozen"),
    [
        ("0::/a/b", "a/b/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("0::/a/b", "a/b/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("6:freezer:/\n0::/a", "unified/a/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("6:freezer:/docker/x\n4:memory:/m\n0::/", "freezer/docker/x/freezer.state", "FROZEN\n", True),
        ("6:cpu,freezer:/docker/x", "freezer/docker/x/freezer.state", "THAWED\n", False),
        ("4:memory:/docker/x", "freezer/docker/x/freezer.state", "FROZEN\n", False),
        ("not what it looks like", "freezer.state", "FROZEN\n", False),
        ("0::/../outside", "a/cgroup.events", "frozen 1\n", False),
    ],
)
def test_a_frozen_control_group_is_read(tmp_path: Path, groups: str, file: str, text: str, frozen: bool) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b) S 1 7 7 0", encoding="utf-8")
    (tmp_path / "7" / "cgroup").write_text(groups + "\n", encoding="utf-8")
    place = tmp_path / "groups" / file
    place.parent.mkdir(parents=True)
    place.write_text(text, encoding="utf-8")
    found = procfs.suspended(7, proc=tmp_path, groups=tmp_path / "groups")
    assert (found is not None and found.frozen) is frozen


def test_the_time_in_which_a_supervisor_was_stopped_itself_is_nobodys(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm stops all processes of a job (`scontrol suspend`); whoever supervises wakes up long after the deadline."""
    child = start("import time\ntime.sleep(1)\nprint('late')\ntime.sleep(60)")
    selector, wait = child._selector, child._selector.select
    slept: list[float] = []

    def select(seconds: float) -> object:
        if not slept:  # the first wait takes three seconds more than was asked for, and shows nothing
            slept.append(3.0)
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(seconds + slept[0])
            os.kill(child.pid, signal.SIGCONT)
            return []
        return wait(seconds)

    monkeypatch.setattr(selector, "select", select)
    assert child.read(Deadline(2.5)) == b"late"


def test_a_python_without_psutil_reads_the_same_of_processes(start: Start) -> None:
    child = start("print('up')\nimport time\ntime.sleep(60)")
    assert child.read(Deadline(20)) == b"up"
    ours, theirs = proc_entries.Process(child.pid), psutil.Process(child.pid)
    assert ours.ppid() == theirs.ppid() == os.getpid()
    assert ours.cmdline() == theirs.cmdline()
    assert ours.environ() == theirs.environ()
    assert child.pid in [c.pid for c in proc_entries.Process(os.getpid()).children()]
    assert ours.status() not in (proc_entries.STATUS_ZOMBIE, proc_entries.STATUS_DEAD)
    ours.kill()
    for _ in range(200):
        if ours.status() == proc_entries.STATUS_ZOMBIE:
            break
        time.sleep(0.01)
    assert ours.status() == proc_entries.STATUS_ZOMBIE == psutil.STATUS_ZOMBIE and ours.cmdline() == []
    assert os.getpid() in proc_entries.pids()
    for gone in (lambda: proc_entries.Process(2**22 + 1), proc_entries.Process(child.pid).environ):
        with pytest.raises(proc_entries.Error):
            gone()


def test_what_psutil_is_asked_for_is_there_without_it() -> None:
    """Whatever `procfs` calls by psutil's names exists in both."""
    tree = ast.parse(Path(procfs.__file__).read_text(encoding="utf-8"))
    asked = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "psutil"}
    assert {"Process", "Error", "pids"} <= asked
    assert [name for name in asked if not (hasattr(proc_entries, name) and hasattr(psutil, name))] == []
