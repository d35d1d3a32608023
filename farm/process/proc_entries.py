"""The part of psutil that `procfs` uses, read from Linux's /proc, for a Python that does not have psutil: that of a
site which runs a kit.  The names are psutil's, so that `procfs` is written once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from farm.errors import FarmSignal

STATUS_ZOMBIE, STATUS_DEAD = "zombie", "dead"
_STATUSES = {"Z": STATUS_ZOMBIE, "X": STATUS_DEAD, "x": STATUS_DEAD}
_PROC = Path("/proc")


class ProcessGone(FarmSignal):
    """A process that is gone, or that this user may not look at."""


Error = ProcessGone


def pids() -> list[int]:
    """The pids of all processes that can be seen."""
    return sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


class Process:
    """A process, asked anew by each call.  `Error` where it does not answer."""

    def __init__(self, pid: int):
        self.pid = pid
        self._stat()

    def ppid(self) -> int:
        """The pid of its parent."""
        return int(self._stat()[1])

    def status(self) -> str:
        """One of the two statuses of an ended process, else the letter of its state."""
        letter = self._stat()[0]
        return _STATUSES.get(letter, letter)

    def children(self) -> list[Process]:
        """Its children, without theirs."""
        found = []
        for pid in pids():
            try:
                child = Process(pid)
                if child.ppid() == self.pid:
                    found.append(child)
            except Error:
                continue
        return found

    def cmdline(self) -> list[str]:
        """Its command line, empty for a kernel's thread and for an entry that its parent has not read yet."""
        words = self._read("cmdline").split("\0")
        return words[:-1] if words[-1] == "" else words

    def environ(self) -> dict[str, str]:
        """Its environment when it started."""
        pairs = (entry.partition("=") for entry in self._read("environ").split("\0") if "=" in entry)
        return {name: value for name, _, value in pairs}

    def kill(self) -> None:
        """SIGKILL."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError as error:
            raise Error(self.pid) from error

    def _stat(self) -> list[str]:
        """The fields behind its name, which may contain anything: state, parent, ..."""
        fields = self._read("stat").rpartition(")")[2].split()
        if len(fields) < 2:
            raise Error(self.pid)
        return fields

    def _read(self, name: str) -> str:
        try:
            return (_PROC / str(self.pid) / name).read_bytes().decode("utf-8", "surrogateescape")
        except OSError as error:
            raise Error(self.pid) from error
