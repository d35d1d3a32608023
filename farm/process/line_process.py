"""A process that communicates over a private pipe, one JSON object per line; other output goes to a log.

Every wait has a deadline.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from farm import limits
from farm.deadline import Deadline, stalled
from farm.errors import FarmSignal
from farm.process import procfs
from farm.process.group import ProcessGroup, describe_exit

#: How often a wait for a line also looks whether the process lives: one that it forked may hold its pipe.
LOOK_SECONDS = 0.25
#: How long a process that has closed its pipe may take to end.
END_SECONDS = 5.0
LONGEST_LINE = 64 << 20
#: At most this is read at once, however fast somebody writes.
_AT_ONCE = 1 << 20


class ChildDied(FarmSignal):
    """The process ended by itself.  `code`: exit code, or minus the signal's number."""

    def __init__(self, code: int):
        self.code = code
        super().__init__(describe_exit(code))


class ChildTimedOut(FarmSignal):
    """The process said nothing within the deadline."""


class ChildLied(FarmSignal):
    """The process wrote something that is no line of its protocol, or closed the pipe."""


class LineProcess(ProcessGroup):
    """`orders`: whether it has a pipe to read from too."""

    #: How long an order may wait for room in the pipe, which a process that reads makes at once.
    write_seconds = limits.TABLE["write"]

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path | None = None,
        orders: bool = False,
        longest: int = LONGEST_LINE,
    ):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            stdin = subprocess.PIPE if orders else subprocess.DEVNULL
            super().__init__(
                command, env=env, cwd=cwd, stdin=stdin, stdout=subprocess.PIPE, stderr=self._log, interrupts=False
            )
        except BaseException:
            self._log.close()
            raise
        self._longest = longest
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        #: Whether it has closed its pipe, and so has everything that it started.
        self.at_end = False
        #: How it was last seen to be kept from running while it was waited for; its user sets this back to None.
        self.suspended: procfs.Suspended | None = None
        for pipe in (self.stdin, self.stdout):
            if pipe:
                os.set_blocking(pipe.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.fileno(), selectors.EVENT_READ)

    def fileno(self) -> int:
        """The pipe that it speaks on, for a selector over several processes."""
        assert self.stdout is not None
        return self.stdout.fileno()

    def write(self, data: bytes, seconds: float | None = None) -> None:
        """Send `data`.  ChildDied or ChildLied if nobody is there to read it, ChildTimedOut if nobody does."""
        assert self.stdin is not None
        deadline = Deadline(self.write_seconds if seconds is None else seconds)
        try:
            data = data[self.stdin.write(data) or 0 :]
            if not data:  # as nearly always: most orders are shorter than a pipe
                return
            with selectors.DefaultSelector() as room:
                room.register(self.stdin, selectors.EVENT_WRITE)
                while data:
                    if not room.select(deadline.remaining):
                        raise ChildTimedOut
                    data = data[self.stdin.write(data) or 0 :]
        except OSError:
            raise self._silent() from None

    def read(self, deadline: Deadline) -> bytes:
        """The next line.  ChildTimedOut, ChildDied or ChildLied say why there is none."""
        while not self._lines:
            since, seconds = time.monotonic(), min(deadline.remaining, LOOK_SECONDS)
            speaks = self._selector.select(seconds)
            deadline.extend(stalled(since, seconds))
            if not speaks:
                alive = self.alive  # asked before the pipe again: what a dead one said has been read when that is empty
                speaks = self._selector.select(0) if not alive else []
                if not (alive or speaks):
                    raise ChildDied(self._code(self.code or 0))
            if speaks:
                self._pump()
                if self.at_end and not self._lines:
                    raise self._silent()
            else:
                self.look()
            if deadline.expired and not self._lines:
                raise ChildTimedOut
        return self._lines.popleft()

    def waiting(self) -> list[bytes]:
        """The lines that are there now.  ChildLied for one that has no end."""
        self._pump(wholly=True)
        found = list(self._lines)
        self._lines.clear()
        return found

    def look(self) -> None:
        """See whether it is kept from running now."""
        for pid in self.working_pids:
            self.suspended = procfs.suspended(pid) or self.suspended

    @property
    def working_pids(self) -> tuple[int, ...]:
        """This host's pids of the processes without which it says nothing."""
        return (self.pid,)

    @property
    def has_spoken(self) -> bool:
        """Whether something waits to be read, a line or a part of one."""
        return bool(self._lines or self._rest or self._selector.select(0))

    def _pump(self, wholly: bool = False) -> None:
        """Read what is in the pipe, without waiting; until there is a line, or to the end."""
        for _ in range(_AT_ONCE >> 16):
            try:
                chunk = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                self.at_end = True
                return
            self._rest += chunk
            if b"\n" in chunk:
                *lines, rest = self._rest.split(b"\n")
                self._lines += map(bytes, lines)
                self._rest = rest
            if len(self._rest) > self._longest:
                raise ChildLied(f"sent a line of more than {self._longest >> 20} MiB on the farm's private pipe")
            if self._lines and not wholly:  # whether more comes, or the end, the next look shows
                return

    def _silent(self) -> ChildDied | ChildLied:
        """Why its pipe is closed; a process that goes on without one is killed."""
        code = self.wait(END_SECONDS)
        if code is not None:
            return ChildDied(self._code(code))
        self.kill(grace=0.0)
        return ChildLied("closed the farm's private pipe but continued to run")

    def _code(self, code: int) -> int:
        """How the process ended that speaks, given how the one ended that was started."""
        return code

    @property
    def log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size  # never a seek: the process writes at the place that both share

    def log(self, longest: int, since: int = 0) -> str:
        """The end of what it and everything in it printed from the byte `since` on."""
        if self.closed:
            return ""
        begin = max(since, self.log_size - longest)
        return os.pread(self._log.fileno(), max(0, self.log_size - begin), begin).decode("utf-8", "replace")

    def printed(self, longest: int, since: int) -> str:
        """What it and everything in it printed from the byte `since` on; of more than `longest` bytes the begin and the
        end, and how much is left out."""
        if self.closed:
            return ""
        size = self.log_size - since
        if size <= longest:
            return self.log(longest, since)
        head = os.pread(self._log.fileno(), longest // 3, since).decode("utf-8", "replace")
        tail = self.log(longest - longest // 3, since)
        return f"{head}\n[... {size - longest:,} bytes left out here ...]\n{tail}"

    @property
    def closed(self) -> bool:
        return self._log.closed

    def close(self, grace: float = 0.0) -> None:
        super().close(grace)
        self._selector.close()
        self._log.close()
