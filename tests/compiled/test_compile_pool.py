"""Worker processes that die, hang, lie, or are not usable: scripted ones, no compiler needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from compiling import HERE, ROOT

from farm.cell import Owner, Status
from farm.compile.jobs import CompileJob
from farm.compile.workers import Chain, WorkerPool
from farm.errors import InfraError
from farm.process import procfs


class Heard:
    """A collector that keeps what it is told."""

    def __init__(self) -> None:
        self.ended: dict[int, str] = {}
        self.concluded: dict[int, tuple[Status, Owner, str]] = {}
        self.logs: dict[int, str] = {}
        self.kernels: list[str] = []

    def ready(self, target: str, fingerprint: Any) -> None:
        pass

    def kernel(self, target: str, said: Any) -> None:
        self.kernels.append(said["hash"])

    def end(self, said: Any, log: str) -> None:
        assert said["cell"] not in self.ended
        self.ended[said["cell"]], self.logs[said["cell"]] = said["status"], log

    def settled(self, cell: int, status: Status, owner: Owner, reason: str, log: str) -> None:
        assert cell not in self.concluded and cell not in self.ended
        self.concluded[cell], self.logs[cell] = (status, owner, reason), log


SCRIPT = """#!{python}
import json, os, signal, sys, time
job = json.load(open(sys.argv[3]))
def say(**message):
    print(json.dumps(message), flush=True)
def log(text):
    print(text, file=sys.stderr, flush=True)
def compile(cell):
    index = cell["index"]
    say(event="begin", cell=index, log=os.fstat(2).st_size)
    log(f"log of {{index}}")
    {compile}
    say(event="end", cell=index, status="built")
{before}
say(event="ready", fingerprint={{}})
for cell in job["cells"]:
    compile(cell)
say(event="done")
"""


def run(tmp_path: Path, compile: str = "pass", before: str = "", jobs: int = 1, **how: Any) -> Heard:
    """Six cells through a worker whose `compile` is this code."""
    python = tmp_path / "python"
    python.write_text(SCRIPT.format(python=sys.executable, compile=compile, before=before))
    python.chmod(0o755)
    heard = Heard()
    settings = {"workers": 2, "cell_seconds": lambda index: 20.0, "start_seconds": 20.0, **how}
    pool = WorkerPool(
        heard,
        folder=tmp_path,
        cache=tmp_path / "cache",
        describe=lambda i: {"index": i},
        chains={"t": Chain(str(python))},
        **settings,
    )
    cells = range(6)
    pool.run([CompileJob("t", tuple(c for c in cells if c % jobs == j)) for j in range(jobs)])
    assert sorted([*heard.ended, *heard.concluded]) == list(cells)
    return heard


def test_every_cell_is_told_of_once(tmp_path: Path) -> None:
    heard = run(tmp_path, jobs=3)
    assert set(heard.ended.values()) == {"built"} and heard.concluded == {}
    assert heard.logs[4] == "log of 4\n"


@pytest.mark.parametrize(
    ("compile", "how"),
    [
        ("if index == 2: os.abort()", "signal 6 (SIGABRT)"),
        ("if index == 2: os.kill(os.getpid(), signal.SIGSEGV)", "signal 11 (SIGSEGV)"),
        ("if index == 2: os._exit(3)", "exit code 3"),
    ],
)
def test_a_death_costs_the_cell_under_way(tmp_path: Path, compile: str, how: str) -> None:
    heard = run(tmp_path, compile)
    ((cell, (status, owner, reason)),) = heard.concluded.items()
    assert (cell, status, owner) == (2, Status.CRASHED, Owner.KERNEL)
    assert how in reason
    assert heard.logs[2].startswith("log of 2\n")


def test_a_hanging_cell_ends_at_its_deadline(tmp_path: Path) -> None:
    heard = run(tmp_path, "if index == 5: time.sleep(60)", cell_seconds=lambda i: 1.0 if i == 5 else 20.0)
    assert heard.concluded[5][0] is Status.TIMED_OUT
    assert len(heard.ended) == 5


def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for(tmp_path: Path) -> None:
    heard = run(tmp_path, "if index == 1 and os.fork() == 0: time.sleep(300)\n    if index == 1: os._exit(1)")
    assert heard.concluded[1][0] is Status.CRASHED


def test_nonsense_on_the_pipe_ends_the_worker(tmp_path: Path) -> None:
    heard = run(tmp_path, "if index == 3: print('hello', flush=True); time.sleep(60)")
    assert heard.concluded[3][0] is Status.CRASHED
    assert "invalid data on the process's private pipe" in heard.concluded[3][2]
    assert len(heard.ended) == 5


def test_an_environment_that_cannot_compile_is_unsupported(tmp_path: Path) -> None:
    heard = run(tmp_path, before="say(event='unusable', reason='no compiler for t'); sys.exit(0)")
    assert set(heard.concluded.values()) == {(Status.UNSUPPORTED, Owner.INFRA, "no compiler for t")}


def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    pool = WorkerPool(
        Heard(),
        workers=1,
        folder=tmp_path / "gone",
        cache=tmp_path,
        describe=lambda i: {"index": i},
        chains={"t": Chain()},
        cell_seconds=lambda i: 1.0,
    )
    with pytest.raises(InfraError, match=r"gone: a compiling process cannot be started .*set TMPDIR"):
        pool.run([CompileJob("t", (0,))])


@pytest.mark.parametrize(
    "lie",
    [
        'event="end", cell=index, status="passed"',
        'event="end", cell=index, status="haha"',
        'event="end", cell=[index], status="built"',
        'event="end", cell=99, status="built"',
        'event="begin", cell=0, log=0',  # which is done
        'event="begin", cell="x", log=0',
        'event="begin", cell=index, log=-1',
        'event="kernel", hash=7',
        'event=["end"]',
        'event="passed"',
        'event="end", cell=index, status="built", flags=7',
    ],
)
def test_a_lie_in_the_right_form_costs_the_cell_under_way(tmp_path: Path, lie: str) -> None:
    heard = run(tmp_path, f"if index == 2: say({lie})")
    assert {c: (s, o) for c, (s, o, _) in heard.concluded.items()} == {2: (Status.CRASHED, Owner.KERNEL)}
    assert set(heard.ended.values()) == {"built"}


def test_a_result_that_cannot_be_read_costs_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Heard.end
    monkeypatch.setattr(Heard, "end", lambda self, said, log: real(self, said, log) if said["cell"] != 2 else 1 / 0)
    heard = run(tmp_path)
    ((cell, (status, owner, reason)),) = heard.concluded.items()
    assert (cell, status, owner) == (2, Status.INFRA_ERROR, Owner.HARNESS) and "ZeroDivisionError" in reason


def test_a_worker_that_never_starts_is_the_farms_fault(tmp_path: Path) -> None:
    heard = run(tmp_path, before="log('no torch here'); sys.exit(1)")
    assert {s for s, _, _ in heard.concluded.values()} == {Status.INFRA_ERROR}
    assert "no torch here" in heard.logs[0]


def test_ctrl_c_ends_the_workers_and_leaves_a_readable_run(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "m.yaml").write_text(
        "name: m\nop: rms_norm\naxes: {shape: [{rows: [4, 5, 6], hidden: 64}], dtype: bfloat16}\n"
    )
    words = [
        "compile",
        str(tmp_path / "m.yaml"),
        "--target",
        "sm_90",
        "--provider",
        "hanging=planted:hanging",
        "--out",
        str(tmp_path / "store"),
        "--run-id",
        "cut",
        "--workers",
        "1",
    ]
    variables = {**os.environ, "FARM_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "farm", *words], cwd=HERE, env=variables, stderr=subprocess.PIPE, text=True
    )
    children: list[int] = []
    end = time.monotonic() + 60
    while not children and time.monotonic() < end:
        time.sleep(0.2)
        children = _compiling(process.pid)
    assert children
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "interrupted: 3 cells did not compile" in said and "Traceback" not in said
    end = time.monotonic() + 20  # they were killed; until a busy host has noticed
    while left := [pid for pid in children if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    from farm.store import Store

    found = Store(tmp_path / "store").run("cut")
    assert not found.complete
    assert [r["status"] for r in found.rows] == ["lost"] * 3


def _compiling(supervisor: int) -> list[int]:
    """Processes that run the compiling module for the command that `supervisor` supervises."""
    out = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = procfs.parent(procfs.parent(int(entry.name)) or 0)
            if parent == supervisor and b"farm.compile.worker" in (entry / "cmdline").read_bytes():
                out.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return out
