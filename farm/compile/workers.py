"""Runs jobs in worker processes, a few at a time: every wait has a deadline, and a process that ends early costs the
cell that it was compiling, no other."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from farm.actor.supervise import Environment, child_variables, describe_exit
from farm.cell import Owner, Status
from farm.compile.jobs import Job, after
from farm.deadline import Deadline
from farm.errors import InfraError

#: Seconds until a worker has imported torch and Triton; the first time on a host that may be from a cold disk.
START_SECONDS = 180.0
_LOOK_SECONDS = 0.25
_LONGEST_LINE = 16 << 20
_LOG_BYTES = 48 << 10


class Collector(Protocol):
    """Who is told what the workers say; in one thread, one call after another."""

    def ready(self, target: str, fingerprint: Mapping[str, Any]) -> None: ...
    def kernel(self, target: str, said: Mapping[str, Any]) -> None: ...
    def end(self, said: Mapping[str, Any], log: str) -> None: ...
    def settled(self, cell: int, status: Status, owner: Owner, reason: str, log: str) -> None: ...


@dataclass(frozen=True)
class Chain:
    """A tool chain: the Python that has it, where that finds `farm`, and what stands before everything there: the
    provider's files, another revision's kernels."""

    python: str = sys.executable
    path: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    deadline: Deadline
    buffer: bytes = b""
    begun: int | None = None
    mark: int = 0  # where in the log the current cell begins
    done: set[int] = field(default_factory=set)
    ended: bool = False
    lied: bool = False  # what is on its pipe cannot be trusted any more
    unusable: str = ""


class Pool:
    """Up to `workers` processes at a time over a queue of jobs."""

    def __init__(
        self,
        collector: Collector,
        *,
        workers: int,
        folder: Path,
        cache: Path,
        describe: Callable[[int], dict[str, Any]],
        chains: Mapping[str, Chain],
        cell_seconds: Callable[[int], float],
        start_seconds: float = START_SECONDS,
        machine_code: bool = False,
    ):
        self.collector, self.workers, self.folder, self.cache = collector, workers, folder, cache
        self.describe, self.chains = describe, chains
        self.cell_seconds, self.start_seconds, self.machine_code = cell_seconds, start_seconds, machine_code
        self.queue: deque[Job] = deque()
        self.running: list[_Running] = []
        self.started = 0
        self.selector = selectors.DefaultSelector()

    def run(self, jobs: Sequence[Job]) -> None:
        """Until every cell of every job is told of.  Whatever ends this early ends the workers too."""
        self.queue.extend(jobs)
        try:
            while self.queue or self.running:
                while self.queue and len(self.running) < self.workers:
                    self._start(self.queue.popleft())
                self._turn()
        finally:
            for worker in list(self.running):
                _kill(worker.process)
                self._forget(worker)
            self.selector.close()

    def _start(self, job: Job) -> None:
        try:
            self._begin(job)
        except OSError as error:
            raise InfraError(
                f"{self.folder}: a compiling process cannot be started ({error.strerror or error}); "
                "see that there is room there, or set TMPDIR to another folder"
            ) from None

    def _begin(self, job: Job) -> None:
        self.started += 1
        file, log = (self.folder / f"{self.started}.{kind}" for kind in ("json", "log"))
        cells = [self.describe(index) for index in job.cells]
        reports = self.cache / "reports"
        reports.mkdir(parents=True, exist_ok=True)
        chain = self.chains[job.target]
        told = {"target": job.target, "path": list(chain.first), "reports": str(reports),
                "machine_code": self.machine_code, "cells": cells}  # fmt: skip
        file.write_text(json.dumps(told), encoding="utf-8")
        variables = child_variables(
            {"TRITON_CACHE_DIR": str(self.cache / "triton"), "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "",
             "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            Environment(path=chain.path),
        )  # fmt: skip
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [chain.python, "-m", "farm.compile.worker", str(file)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, env=variables, cwd=self.folder,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        worker = _Running(job, process, log, Deadline(self.start_seconds))
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self.selector.register(process.stdout, selectors.EVENT_READ, worker)
        self.running.append(worker)

    def _turn(self) -> None:
        silent = {id(w): w.process.poll() is not None for w in self.running}  # asked before the pipes are read
        for key, _ in self.selector.select(_LOOK_SECONDS):
            self._read(key.data)
        for worker in list(self.running):
            if worker.ended or (silent.get(id(worker)) and worker.process.poll() is not None):
                self._read(worker)
                self._conclude(worker, timed_out=False)
            elif worker.deadline.expired:
                self._conclude(worker, timed_out=True)

    def _read(self, worker: _Running) -> None:
        """Hear everything that is in the pipe now."""
        assert worker.process.stdout is not None
        while not worker.ended:
            try:
                chunk = os.read(worker.process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                worker.ended = True
                return
            worker.buffer += chunk
            *lines, worker.buffer = worker.buffer.split(b"\n")
            if len(worker.buffer) > _LONGEST_LINE:
                worker.ended = worker.lied = True
            for line in lines:
                self._hear(worker, line)

    def _hear(self, worker: _Running, line: bytes) -> None:
        try:
            said = json.loads(line)
            event = said["event"]
        except (ValueError, TypeError, KeyError):
            worker.ended = worker.lied = True  # the code under test wrote there
            return
        if event == "ready":
            self.collector.ready(worker.job.target, said["fingerprint"])
            worker.deadline = Deadline(self.start_seconds)
        elif event == "unusable":
            worker.unusable = said["reason"]
        elif event == "begin":
            worker.begun, worker.mark = said["cell"], int(said["log"])
            worker.deadline = Deadline(self.cell_seconds(said["cell"]))
        elif event == "kernel":
            self.collector.kernel(worker.job.target, said)
        elif event == "end" and said["cell"] == worker.begun:
            worker.done.add(said["cell"])
            self.collector.end(said, self._log(worker))
            worker.begun = None
            worker.deadline = Deadline(self.start_seconds)

    def _conclude(self, worker: _Running, timed_out: bool) -> None:
        """The process has ended, or must."""
        seconds = worker.deadline.seconds
        if timed_out:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(worker.process.pid, signal.SIGUSR1)  # its stacks go to the log
                time.sleep(0.3)
        code = _kill(worker.process) if timed_out or worker.lied else _end(worker.process)
        how = describe_exit(code)
        if timed_out or worker.lied:
            how = f"it was not compiled within {seconds:g} s" if timed_out else "nonsense on the farm's private pipe"
        if worker.unusable:
            for cell in worker.job.cells:
                self.collector.settled(cell, Status.UNSUPPORTED, Owner.INFRA, worker.unusable, self._log(worker))
        else:
            fate = after(worker.job, worker.done, worker.begun, how, timed_out)
            for cell, (status, owner, reason) in fate.settled.items():
                self.collector.settled(cell, status, owner, reason, self._log(worker))
            if fate.rest:
                self.queue.appendleft(fate.rest)
        self._forget(worker)

    def _forget(self, worker: _Running) -> None:
        assert worker.process.stdout is not None
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(worker.process.stdout)
        worker.process.stdout.close()
        self.running.remove(worker)

    def _log(self, worker: _Running) -> str:
        """What was printed since the cell under way began; of much the end."""
        with worker.log.open("rb") as file:
            file.seek(max(worker.mark, _size(worker.log) - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")


def _size(path: Path) -> int:
    return path.stat().st_size


def _end(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that has ended or is about to; a group that goes on is killed."""
    try:
        code = process.wait(timeout=2.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started may outlive it
        return code
    except subprocess.TimeoutExpired:
        return _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(timeout=10.0)
    return -int(signal.SIGKILL)
