"""A command that a library could end, in a fork of its own; its supervisor loads no library and has the last word.

Ray ends the process that it is loaded into, with exit code 1, when its raylet or its GCS is gone; an exit code of 1
means findings.  So the worker announces its exit code, and an end that it did not announce is one of the
infrastructure.  The supervisor also bounds how long an interrupt may take, and ends what the worker has left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from farm.process import interrupts, variables
from farm.process.group import describe_exit, die_with_parent

FAILED = 3
KNOWN = range(5)  # exit codes of the farm; others are a library's
#: How long a run may take to end in order once it was interrupted; with what follows this is less than ten seconds.
END_SECONDS = 8.0
#: How long the worker may take to be gone after its last word.
LEAVE_SECONDS = 10.0
#: How long ending what is left may take; a process in a driver's call may not end.
CLEAR_SECONDS = 5.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Course:
    """What the supervisor knows of the worker, and what follows.  Pure: times come in."""

    running: Mapping[str, Any] | None = None  # what it told once interrupts were its own affair
    concluded: Mapping[str, Any] | None = None  # {"code", "complete"} once the result is on disk
    code: int | None = None  # its last word
    interrupted: bool = False
    kill_at: float | None = None
    folders: list[str] = field(default_factory=list)  # to remove when nothing can write to them any more
    again: bool = False  # the worker has asked for another one in its place

    def told(self, word: Mapping[str, Any], now: float) -> None:
        """The worker has said something."""
        if word["event"] == "running":
            self.running, self.concluded = word, None  # of a command that runs again and again, the run that is on
        elif word["event"] == "concluded":
            self.concluded = word
        elif word["event"] == "folder":
            self.folders.append(word["path"])
        elif word["event"] == "again":
            self.again = True
        elif word["event"] == "leaves":
            self.code, self.kill_at = int(word["code"]), now + LEAVE_SECONDS

    def signalled(self, now: float) -> bool:
        """A signal has come; whether to hand it on.  Before a run there is nothing to end in order, and who sends a
        second one does not want to wait."""
        again, self.interrupted = self.interrupted, True
        if again or self.running is None or self.code is not None:
            self.kill_at = now
            return False
        self.kill_at = now + END_SECONDS
        return True

    def outcome(self, status: int) -> Outcome:
        """How the command has ended, of a worker that ended with `status` (minus a signal's number)."""
        facts = dict(self.running or {})
        if self.again and not self.interrupted:
            return Outcome(FAILED, "again", facts)
        if self.code is not None:
            return Outcome(self.code, "announced", facts)
        if self.concluded and self.concluded["complete"]:
            return Outcome(int(self.concluded["code"]), "page missing", facts)
        if self.interrupted:
            return Outcome(FAILED, "interrupted", facts)
        return Outcome(FAILED, "unannounced", facts, describe_exit(status))


@dataclass(frozen=True)
class Outcome:
    """`kind`: `announced` and `again` need no words; `page missing`, `interrupted` and `unannounced` do.  `facts`:
    those that the worker told `running`."""

    code: int
    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    how: str = ""


# in the worker

_line: int | None = None  # to the supervisor
_first = False  # whether another worker may follow


def there() -> bool:
    """Whether a supervisor ends what this process leaves behind."""
    return _line is not None


def running(**facts: Any) -> None:
    """From now on the worker ends in order by itself when it is interrupted."""
    global _first
    _first = False
    _say(event="running", **facts)


def concluded(code: int, *, complete: bool) -> None:
    """The result is on disk, and what is still to come cannot change it."""
    _say(event="concluded", code=code, complete=complete)


def removes(path: str) -> None:
    """A folder that is removed when this process, and all that it started, has ended."""
    _say(event="folder", path=path)


def leave(code: int) -> NoReturn:
    """End this process now, with this exit code: no library's handler runs."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _say(event="leaves", code=code)
    os._exit(code)


def may_restart() -> bool:
    """Whether `restart` does the command anew: under a supervisor, once, and before it has begun its own work."""
    return _first


def restart() -> NoReturn:
    """End this process now, and let the supervisor do the command in another one: where a library hangs in a call that
    nobody can interrupt.  FAILED unless `may_restart`."""
    if _first:
        _say(event="again")
    leave(FAILED)


def _say(**word: Any) -> None:
    if _line is not None:
        with contextlib.suppress(OSError):
            os.write(_line, json.dumps(word).encode() + b"\n")  # shorter than a pipe writes at once


# in the supervisor


def run(work: Callable[[], int], explain: Callable[[Outcome], None], secrets: Sequence[str] = ()) -> int:
    """The exit code of `work()`, done in a fork.  `explain` tells people of an outcome that nobody announced.
    `secrets`: variables that the supervisor does not need, and that others could read in its environment."""
    with interrupts.heard(raising=False) as signals:
        supervisor = os.getpid()
        with contextlib.suppress(OSError, AttributeError):  # elsewhere than on Linux
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of the worker become ours
        kept = {name: os.environ[name] for name in secrets if name in os.environ}
        for first in (True, False):
            reading, writing = os.pipe()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            try:
                pid = os.fork()
            except OSError:  # no process is to be had
                os.close(reading)
                os.close(writing)
                signals.raising = True
                return work()
            if pid == 0:
                die_with_parent()
                if os.getppid() != supervisor:
                    os._exit(FAILED)
                os.close(reading)
                os.environ.update(kept)
                return _worked(work, writing, first)
            os.close(writing)
            for name in secrets:
                variables.forget(name)
            outcome = _Supervisor(pid, reading, signals).watch()
            if outcome.kind != "again":
                break
        signals.raising = True
        if outcome.kind != "announced":
            with contextlib.suppress(Exception, KeyboardInterrupt):  # nothing changes the exit code now
                explain(outcome)
        return outcome.code


def _worked(work: Callable[[], int], line: int, first: bool) -> int:
    """Do it and announce the exit code.  A SystemExit that is not the farm's is a library's, of a signal's number."""
    global _line, _first
    _line, _first = line, first
    try:
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED if end.code else 0
    code = code if code in KNOWN else FAILED
    _say(event="leaves", code=code)
    return code


class _Supervisor:
    def __init__(self, pid: int, line: int, signals: interrupts.Interrupts) -> None:
        self._pid, self._line, self._signals = pid, line, signals
        self._course, self._text, self._seen = Course(), b"", 0
        self._status: int | None = None

    def watch(self) -> Outcome:
        """Until the worker has ended, and nothing of it is left."""
        wakes, wake = os.pipe()
        for end in (wakes, wake, self._line):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # it wakes up
        open_ends = [wakes, self._line]
        try:
            while True:
                self._reap()
                if not self._listen() and self._line in open_ends:
                    open_ends.remove(self._line)
                if self._status is not None:
                    break
                self._act(time.monotonic())
                select.select(open_ends, [], [], self._patience(time.monotonic()))
                with contextlib.suppress(BlockingIOError):
                    os.read(wakes, 4096)
            self._clear()
            for folder in self._course.folders:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (wakes, wake, self._line):
                os.close(end)
        return self._course.outcome(self._status)

    def _patience(self, now: float) -> float | None:
        """Seconds until something is due; a killed worker is looked for anew."""
        return None if self._course.kill_at is None else max(0.1, self._course.kill_at - now)

    def _act(self, now: float) -> None:
        for _ in self._signals.times[self._seen :]:
            self._seen += 1
            if self._course.signalled(now):
                self._kill(self._pid, self._signals.number)
        if self._course.kill_at is not None and now >= self._course.kill_at:
            self._kill(self._pid, signal.SIGKILL)

    def _listen(self) -> bool:
        """Take what the worker says; False once it can say no more."""
        while True:
            try:
                part = os.read(self._line, 65536)
            except BlockingIOError:
                return True
            if not part:
                return False
            self._text += part
            *whole, self._text = self._text.split(b"\n")
            for word in whole:
                self._course.told(json.loads(word), time.monotonic())

    def _reap(self) -> None:
        """Take the ends of the worker, and of its orphans."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._status = os.waitstatus_to_exitcode(status)

    def _clear(self) -> None:
        """End everything that the worker has started and left."""
        end = time.monotonic() + CLEAR_SECONDS
        while time.monotonic() < end:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            from farm.process import procfs  # where nothing is left, it is not needed

            for pid in procfs.children(os.getpid()):
                self._kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    @staticmethod
    def _kill(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
