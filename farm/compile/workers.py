"""Runs jobs in worker processes, a few at a time: every wait has a deadline, and a process that ends early costs the
cell that it was compiling, no other."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from farm.cell import Owner, Status
from farm.compile.jobs import CompileJob, after
from farm.deadline import Deadline, stalled
from farm.errors import FarmError, InfraError, UsageError, describe
from farm.field_checks import Check, integer, listed, mapped, number, one_of, plain, record, refuse, text
from farm.node import sandbox, sandbox_host
from farm.node.environment import Environment, child_variables
from farm.process.group import describe_exit
from farm.process.line_process import ChildLied, LineProcess
from farm.process.own_modules import module_words

#: Seconds until a worker has imported torch and Triton; the first time on a host that may be from a cold disk.
START_SECONDS = 180.0
_LOOK_SECONDS = 0.25
#: How long a worker may take to end that has closed its pipe.
_END_SECONDS = 2.0
_LONGEST_LINE = 16 << 20
_ANY, _WORD, _REASON = plain(6, 10_000), text(1000), text(1 << 16)
_KERNEL = {"hash": _WORD, "name": _WORD, "resources": mapped(_ANY), "constants": mapped(_ANY)}
#: Event of a worker, which runs the code under test -> its fields.
SAID: Mapping[str, Check] = {
    "ready": record({"event": _WORD, "fingerprint": mapped(plain())}),
    "unusable": record({"event": _WORD, "reason": _REASON}),
    "refused": record({"event": _WORD, "reason": _REASON}),
    "begin": record({"event": _WORD, "cell": integer(), "log": integer()}),
    "kernel": record({"event": _WORD, **_KERNEL}, {"module": _WORD}),
    "end": record(
        {
            "event": _WORD,
            "cell": integer(),
            "status": one_of("built", "unsupported", "compile_error", "crashed", "infra_error"),
        },
        {
            "reason": _REASON,
            "launches": listed(_ANY, 10_000),
            "records": listed(_ANY, 10_000),
            "flags": listed(_REASON),
            "compile_s": number(),
        },
    ),
    "done": record({"event": _WORD}),
}
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
    job: CompileJob
    process: LineProcess
    deadline: Deadline
    begun: int | None = None
    mark: int = 0  # where in the log the current cell begins
    done: set[int] = field(default_factory=set)
    lied: bool = False  # what is on its pipe cannot be trusted any more
    unusable: str = ""


class WorkerPool:
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
        asm: str = "",
        sandbox: bool = False,
        subject: Mapping[str, Any] | None = None,
        variables: Callable[[str], Mapping[str, str]] = lambda target: {},
    ):
        self.subject, self.variables, self.asm, self.sandbox = subject, variables, asm, sandbox
        self.collector, self.workers, self.folder, self.cache = collector, workers, folder, cache
        self.describe, self.chains = describe, chains
        self.cell_seconds, self.start_seconds, self.machine_code = cell_seconds, start_seconds, machine_code
        self.queue: deque[CompileJob] = deque()
        self.running: list[_Running] = []
        self.started = 0
        self.selector = selectors.DefaultSelector()

    def run(self, jobs: Sequence[CompileJob], stopped: Callable[[], bool] = lambda: False) -> None:
        """Until every cell of every job is told of, or work is `stopped`.  Whatever ends this early ends the workers
        too."""
        self.queue.extend(jobs)
        try:
            while (self.queue or self.running) and not stopped():
                while self.queue and len(self.running) < self.workers:
                    self._start(self.queue.popleft())
                self._turn()
        finally:
            for worker in list(self.running):
                self._forget(worker)
            self.selector.close()

    def _start(self, job: CompileJob) -> None:
        try:
            self._begin(job)
        except OSError as error:
            raise InfraError(
                f"{self.folder}: a compiling process cannot be started ({error.strerror or error}); "
                "free space there, or set TMPDIR to another folder",
                id="compile-worker-failed",
            ) from None

    def _begin(self, job: CompileJob) -> None:
        self.started += 1
        file = self.folder / f"{self.started}.json"
        cells = [self.describe(index) for index in job.cells]
        reports = self.cache / "reports"
        reports.mkdir(parents=True, exist_ok=True)
        chain = self.chains[job.target]
        told = {
            "target": job.target,
            "path": list(chain.first),
            "reports": str(reports),
            "machine_code": self.machine_code,
            "asm": self.asm,
            "subject": self.subject,
            "cells": cells,
        }
        file.write_text(json.dumps(told), encoding="utf-8")
        variables = child_variables(
            {
                "TRITON_CACHE_DIR": str(self.cache / "triton"),
                "CUDA_VISIBLE_DEVICES": "",
                "HIP_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                **self.variables(job.target),
            },
            Environment(path=chain.path),
        )
        words = [*module_words("farm.compile.worker", chain.python), str(file)]
        if self.sandbox:
            there = Environment(path=(*chain.path, *chain.first))
            words = sandbox_host.words(there, words, [str(self.folder)], cwd=str(self.folder))
            variables = sandbox.variables(variables, sandbox_host.limits({}), grouped=False)
        process = LineProcess(words, env=variables, cwd=self.folder, longest=_LONGEST_LINE)
        worker = _Running(job, process, Deadline(self.start_seconds))
        self.selector.register(process, selectors.EVENT_READ, worker)
        self.running.append(worker)

    def _turn(self) -> None:
        dead = [w for w in self.running if not w.process.alive]  # asked before the pipes are read
        since = time.monotonic()
        spoke = self.selector.select(_LOOK_SECONDS)
        late = stalled(since, _LOOK_SECONDS)
        for worker in self.running:
            worker.deadline.extend(late)
            worker.process.look()
        for key, _ in spoke:
            self._read(key.data)
        for worker in list(self.running):
            if worker.lied or worker.process.at_end or worker in dead:
                self._conclude(worker, timed_out=False)
            elif worker.deadline.expired:
                self._conclude(worker, timed_out=True)

    def _read(self, worker: _Running) -> None:
        """Take every line that is in the pipe now."""
        try:
            for line in worker.process.waiting():
                if not worker.lied:
                    self._hear(worker, line)
        except ChildLied:
            worker.lied = True

    def _hear(self, worker: _Running, line: bytes) -> None:
        try:
            said = json.loads(line)
            SAID[said["event"]](said, "")
            if "cell" in said and (said["cell"] not in worker.job.cells or said["cell"] in worker.done):
                raise refuse("cell", said["cell"], "one that is to do")
        except (ValueError, TypeError, KeyError, RecursionError):
            worker.lied = True  # the code under test wrote there
            return
        event = said["event"]
        if event == "ready":
            self.collector.ready(worker.job.target, said["fingerprint"])
            worker.deadline = Deadline(self.start_seconds)
        elif event == "unusable":
            worker.unusable = said["reason"]
        elif event == "refused":
            what = "every result would be one of other code, so nothing was compiled; uninstall or rename it"
            raise UsageError(f"the subject: {said['reason']}; {what}", id="subject-not-taken")
        elif event == "begin":
            worker.begun, worker.mark, worker.process.suspended = said["cell"], int(said["log"]), None
            worker.deadline = Deadline(self.cell_seconds(said["cell"]))
        elif event == "kernel":
            self.collector.kernel(worker.job.target, said)
        elif event == "end" and said["cell"] == worker.begun:
            worker.done.add(said["cell"])
            self._end(said, self._log(worker))
            worker.begun = None
            worker.deadline = Deadline(self.start_seconds)

    def _end(self, said: dict[str, Any], log: str) -> None:
        try:
            self.collector.end(said, log)
        except (FarmError, OSError):
            raise
        except Exception as error:  # of a kernel's resources, for example, that are not what the gate expects
            why = f"the farm failed on its result ({describe(error)})"
            trace = "".join(traceback.format_exception(error))
            self.collector.settled(said["cell"], Status.INFRA_ERROR, Owner.HARNESS, why, trace)

    def _conclude(self, worker: _Running, timed_out: bool) -> None:
        """The process has ended, or must."""
        seconds, stopped = worker.deadline.seconds, worker.process.suspended if timed_out else None
        if timed_out:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(worker.process.pid, signal.SIGUSR1)  # its stacks go to the log
                time.sleep(0.3)
        if not (timed_out or worker.lied):
            worker.process.wait(_END_SECONDS)
        worker.process.kill()
        how = describe_exit(-signal.SIGKILL if worker.process.code is None else worker.process.code)
        if timed_out or worker.lied:
            how = (
                f"the cell was not compiled within {seconds:g} s"
                if timed_out
                else "invalid data on the process's private pipe"
            )
        if stopped:
            how += f", and its process could not run: {stopped.why}"
        if worker.unusable:
            for cell in worker.job.cells:
                self.collector.settled(cell, Status.UNSUPPORTED, Owner.INFRA, worker.unusable, self._log(worker))
        else:
            fate = after(worker.job, worker.done, worker.begun, how, timed_out, stopped=bool(stopped))
            for cell, (status, owner, reason) in fate.settled.items():
                self.collector.settled(cell, status, owner, reason, self._log(worker))
            if fate.rest:
                self.queue.appendleft(fate.rest)
        self._forget(worker)

    def _forget(self, worker: _Running) -> None:
        self.selector.unregister(worker.process)
        worker.process.close()
        self.running.remove(worker)

    def _log(self, worker: _Running) -> str:
        """What was printed since the cell under way began; of much the end."""
        return worker.process.log(_LOG_BYTES, since=worker.mark)
