"""Judges in processes of their own: one that runs out of memory, crashes or hangs ends itself and not the run."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
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
#: A host with so many cores has some to spare: there so many processes start at once, and a call waits less.
MANY_CORES, AT_ONCE, MANY_AFTER_SECONDS = 12, 3, 0.05
LOOK_SECONDS = 1.0
KEPT_KEYS = 256
_KEEP_LOG = 16 << 10


class JudgeProcesses:
    """At most `most` processes with `threads` threads each, started when they are needed; any thread may call.  Each
    serves one call at a time."""

    def __init__(self, spool: str, threads: int, most: int):
        self._spool, self._threads, self._most = spool, threads, most
        self.lock_s = limits.TABLE["lock"]  # of the judges' cache
        self._idle: list[LineProcess] = []
        self._all: set[LineProcess] = set()
        self._new: set[LineProcess] = set()  # those that have not answered yet
        self._served: dict[str, LineProcess] = {}  # by key, which of them had its call last
        self._starting = 0
        many = (os.cpu_count() or 1) >= MANY_CORES
        self._first, self._after_s = (min(AT_ONCE, most), MANY_AFTER_SECONDS) if many else (1, START_AFTER_SECONDS)
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def begin(self) -> None:
        """Start the first before they are needed: what they import takes a while."""
        with self._changed:
            if self._all or self._starting or self._closed:
                return
        for _ in range(self._first):
            with self._changed:
                self._starting += 1
            self._give_back(self._started())

    def call(self, name: str, given: Mapping[str, Any], seconds: float, key: str = "") -> Any:
        """The answer, if possible of the process that had the last call of this key.  JudgeFailed with the text of an
        exception there, and where none answered in time, or two died: what killed the first may be gone for the
        second."""
        order = json.dumps({"call": name, "given": given}, separators=(",", ":")).encode() + b"\n"
        deadline = Deadline(seconds)
        try:
            return self._ask(order, deadline, key)
        except ChildDied:
            pass
        try:
            return self._ask(order, deadline, key)
        except ChildDied as error:
            raise JudgeFailed(Message(f"the judge died ({error})", id="judge-died")) from None

    def _ask(self, order: bytes, deadline: Deadline, key: str) -> Any:
        process = self._take(key)
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

    def _take(self, key: str) -> LineProcess:
        """One that is idle, or a new one: each makes inputs and references for itself, so the one that has those of
        `key`, unless it stays at work."""
        with self._changed:
            begun = time.monotonic()
            while not self._closed:
                known = self._served.get(key)
                patient = begun + self._after_s - time.monotonic()
                if self._idle and known in self._all and known not in self._idle and patient > 0:
                    self._changed.wait(patient)
                    continue
                while self._idle:
                    process = known if known in self._idle else self._idle[-1]
                    self._idle.remove(process)
                    if process.alive:
                        self._serves(key, process)
                        return process
                    self._drop(process)
                number = len(self._all) + self._starting
                patience = STARTING_SECONDS if self._starting or self._new else self._after_s
                left = begun + patience - time.monotonic()
                if number == 0 or (left <= 0 and number < self._most):
                    self._starting += 1
                    break
                self._changed.wait(left if left > 0 else LOOK_SECONDS)
            else:
                raise JudgeFailed("the run has ended")
        process = self._started()
        with self._changed:
            self._serves(key, process)
        return process

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
            process = LineProcess(words, env=own_variables(), orders=True)
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
            self._changed.notify()
            closed = self._closed
        if closed:
            self._drop(process)

    def _drop(self, process: LineProcess) -> None:
        with self._changed:
            self._all.discard(process)
            self._changed.notify()
        process.close()

    def close(self) -> None:
        """End all; who waits for one is told."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = [process for process in self._all if process not in idle]
            self._changed.notify_all()
        for process in busy:  # whoever waits for it closes it
            process.kill()
        for process in idle:
            self._drop(process)
