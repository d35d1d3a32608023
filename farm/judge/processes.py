"""Judges in processes of their own: one that runs out of memory, crashes or hangs ends itself and not the run."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm import STARTED_NS, limits
from farm.deadline import Deadline
from farm.errors import JudgeFailed, Message
from farm.judge.digest import judging_digest
from farm.process.line_process import ChildDied, ChildLied, ChildTimedOut, LineProcess
from farm.process.own_modules import module_words, own_variables

#: How long a call waits for a process that is at work until another is started, for most calls take milliseconds; and
#: while one is starting, which takes some tenths of a second, and longer on a busy host the more of them start.
START_AFTER_SECONDS, STARTING_SECONDS = 0.5, 10.0
#: A host with so many cores has some to spare: there one process for so many starts at once, each with its share of
#: them as threads.  More processes rather than more threads: NumPy's calls are short, and threads of one interpreter
#: then wait for each other.
MANY_CORES, CORES_EACH, MOST_THREADS = 12, 3, 8
#: There a call waits less for the process that has its inputs: about what it takes to make them and the reference anew,
#: seconds an element, and within these bounds.
ANEW_SECONDS, LEAST_PATIENCE = 2e-8, 0.05
#: Calls in the order in which they get a process: a device may wait for inputs, nobody waits for a reference.
CALLS = ("prepare", "judge", "warm")
LOOK_SECONDS = 1.0
KEPT_KEYS = 256
_KEEP_LOG = 16 << 10
#: Threads of OpenBLAS spin for 2^N cycles before they sleep, and do so once NumPy is imported: with the default N of 26
#: each burns some hundredths of a CPU second, and each judge has one for every core.
_VARIABLES = {"OPENBLAS_THREAD_TIMEOUT": "4"}


@dataclass(frozen=True)
class Sharing:
    """How judges share a host: `first` processes start at once, with `threads` each; `spare`: whether there are cores
    for what nobody waits for yet."""

    first: int
    threads: int
    spare: bool


def sharing(cores: int, most: int) -> Sharing:
    """On a host of so many cores, with at most so many processes."""
    if cores < MANY_CORES:
        return Sharing(1, max(2, min(MOST_THREADS, cores // 2)), spare=False)
    first = max(1, min(most, cores // CORES_EACH))
    return Sharing(first, max(2, min(MOST_THREADS, cores // first)), spare=True)


@dataclass(eq=False)
class _Waiting:
    """A call that waits for a process: its place in CALLS, and until when it waits for the one of its key."""

    rank: int
    key: str
    until: float


class JudgeProcesses:
    """At most `most` processes with `threads` threads each (0: what `sharing` says), started when they are needed; any
    thread may call.  Each serves one call at a time."""

    def __init__(self, spool: str, threads: int, most: int, cores: int = 0):
        self.sharing = sharing(cores or os.cpu_count() or 2, most)
        self._spool, self._threads, self._most = spool, threads or self.sharing.threads, most
        self.lock_s = limits.TABLE["lock"]  # of the judges' cache
        self._idle: list[LineProcess] = []
        self._all: set[LineProcess] = set()
        self._new: set[LineProcess] = set()  # those that have not answered yet
        self._served: dict[str, LineProcess] = {}  # by key, which of them had its call last
        self._queue: list[_Waiting] = []  # in the order in which they came
        self._starting = 0
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def begin(self) -> None:
        """Start the first before they are needed: what they import takes a while."""
        with self._changed:
            if self._all or self._starting or self._closed:
                return
        for _ in range(self.sharing.first):
            with self._changed:
                self._starting += 1
            self._give_back(self._started())

    def call(self, name: str, given: Mapping[str, Any], seconds: float, key: str = "") -> Any:
        """The answer, if possible of the process that had the last call of this key.  JudgeFailed with the text of an
        exception there, and where none answered in time, or two died: what killed the first may be gone for the
        second."""
        order = json.dumps({"call": name, "given": given}, separators=(",", ":")).encode() + b"\n"
        deadline = Deadline(seconds)
        rank, patience = CALLS.index(name), self._patience(given)
        try:
            return self._ask(order, deadline, rank, key, patience)
        except ChildDied:
            pass
        try:
            return self._ask(order, deadline, rank, key, patience)
        except ChildDied as error:
            raise JudgeFailed(Message(f"the judge died ({error})", id="judge-died")) from None

    def _patience(self, given: Mapping[str, Any]) -> float:
        """Seconds that a call waits for the process that has its inputs, while others are idle."""
        if not self.sharing.spare:
            return START_AFTER_SECONDS
        elements = math.prod((given.get("cell") or given).get("dims", {}).values())
        return max(LEAST_PATIENCE, min(START_AFTER_SECONDS, ANEW_SECONDS * elements))

    def _ask(self, order: bytes, deadline: Deadline, rank: int, key: str, patience: float) -> Any:
        process = self._take(rank, key, patience)
        mark, answer = process.log_size, None
        try:
            process.write(order, deadline.remaining)
            answer = json.loads(process.read(deadline))
        except (ChildLied, ValueError) as error:
            raise JudgeFailed(Message(f"the judge {error}", id="judge-died")) from None
        except ChildTimedOut:
            text = f"the judge did not answer within {deadline.seconds:g} s"
            raise JudgeFailed(Message(text, id="judge-silent")) from None
        finally:
            if not self._closed and process.log_size > mark:
                sys.stderr.write(process.log(_KEEP_LOG, mark))
            self._new.discard(process)
            self._give_back(process) if answer is not None else self._drop(process)
        if "failed" in answer:
            raise JudgeFailed(answer["failed"], answer["owner"])
        return answer["found"]

    def _take(self, rank: int, key: str, patience: float) -> LineProcess:
        """One that is idle, or a new one: each makes inputs and references for itself, so the one that has those of
        `key`, unless it stays at work."""
        with self._changed:
            begun = time.monotonic()
            mine = _Waiting(rank, key, begun + patience)
            self._queue.append(mine)
            try:
                while not self._closed:
                    now = time.monotonic()
                    process = claims(self._queue, self._idle, self._all, self._served, now, self.sharing.spare).get(
                        mine
                    )
                    if process is not None:
                        self._idle.remove(process)
                        if process.alive:
                            self._serves(key, process)
                            return process
                        self._drop(process)
                        continue
                    number = len(self._all) + self._starting
                    starts = STARTING_SECONDS if self._starting or self._new else START_AFTER_SECONDS
                    left = begun + starts - now
                    may = number < self._most and not self._optional(rank)
                    if number == 0 or (left <= 0 and may):
                        self._starting += 1
                        break
                    waits = [s for s in (mine.until - now, left if may else 0.0) if s > 0]
                    self._changed.wait(min(waits, default=LOOK_SECONDS))
                else:
                    raise JudgeFailed("the run has ended")
            finally:
                self._queue.remove(mine)
        process = self._started()
        with self._changed:
            self._serves(key, process)
        return process

    def _optional(self, rank: int) -> bool:
        """Whether a call is made only because there are cores to spare."""
        return self.sharing.spare and CALLS[rank] == "warm"

    def _serves(self, key: str, process: LineProcess) -> None:
        if key:
            self._served.pop(key, None)
            self._served[key] = process
            while len(self._served) > KEPT_KEYS:
                del self._served[next(iter(self._served))]

    def _started(self) -> LineProcess:
        told = (self._spool, self._threads, self.lock_s, judging_digest(), STARTED_NS, self._most)
        words = [*module_words("farm.judge.worker"), *map(str, told)]
        process = None
        try:
            process = LineProcess(words, env={**_VARIABLES, **own_variables()}, orders=True)
        except OSError as error:
            raise JudgeFailed(Message(f"no judge could be started ({error})", id="judge-died")) from None
        finally:
            with self._changed:
                self._starting -= 1
                if process:
                    self._all.add(process)
                    self._new.add(process)
        return process

    def _give_back(self, process: LineProcess) -> None:
        with self._changed:
            self._idle.append(process)
            self._changed.notify_all()
            closed = self._closed
        if closed:
            self._drop(process)

    def _drop(self, process: LineProcess) -> None:
        with self._changed:
            self._all.discard(process)
            self._changed.notify_all()
        process.close()

    def close(self) -> None:
        """End all; who waits for one is told."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = [process for process in self._all if process not in idle]
            self._changed.notify_all()
        for process in (*busy, *idle):  # all at once: a judge takes a while to give back what it has mapped
            process.signal(signal.SIGKILL)
        for process in busy:  # whoever waits for it closes it
            process.kill()
        for process in idle:
            self._drop(process)


def claims(
    queue: Sequence[_Waiting],
    idle: Sequence[LineProcess],
    every: Collection[LineProcess],
    served: Mapping[str, LineProcess],
    now: float,
    spare: bool,
) -> dict[_Waiting, LineProcess]:
    """Which waiting call may take which idle process.  The more urgent ones choose first, and within a kind those that
    came first.  Where there are cores to spare, a call that nobody waits for leaves one process idle."""
    free, found = list(idle), {}
    for one in sorted(queue, key=lambda w: w.rank):
        if not free or (spare and CALLS[one.rank] == "warm" and len(free) < 2):
            continue
        known = served.get(one.key)
        if known in every and known not in free and now < one.until:
            continue
        others = {served.get(w.key) for w in queue if w is not one}
        chosen = known if known in free else next((p for p in reversed(free) if p not in others), free[-1])
        free.remove(chosen)
        found[one] = chosen
    return found
