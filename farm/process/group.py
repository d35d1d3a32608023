"""A started command and all that it starts: one process group, in a session of its own, which ends as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from farm import limits

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """What this thread starts within it does not hear SIGINT: Ctrl-C is the coordinator's to handle, and whoever is
    interrupted while it imports says so in a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProcessGroup:
    """A running command, the leader of its group.  `interrupts`: whether SIGINT reaches it; one without is deaf to it
    from its first instruction, as a Python program cannot be by itself.  Raises OSError if it cannot be started."""

    #: How long it may take to end after SIGKILL; in a driver's call it may never do so.
    kill_seconds = limits.TABLE["teardown"]

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.DEVNULL,
        stderr: int | IO[Any] | None = subprocess.DEVNULL,
        pass_fds: Iterable[int] = (),
        interrupts: bool = True,
    ):
        keep_exit_codes()
        with contextlib.nullcontext() if interrupts else deaf():
            self._popen = subprocess.Popen(
                list(command),
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
                bufsize=0,
            )
        self.stdin, self.stdout, self.stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def code(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._popen.poll()

    def wait(self, seconds: float) -> int | None:
        """`code`, once it has ended, or after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=seconds)
        return self.code

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self, grace: float = 0.0) -> bool:
        """SIGTERM where `grace` seconds are given, then SIGKILL; False if even that did not end it (a device fault)."""
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, self.kill_seconds)):
            if seconds > 0:
                self.signal(number)
                if self.wait(seconds) is not None:
                    self.signal(signal.SIGKILL)  # what it started may outlive it
                    return True
        return False

    def close(self, grace: float = 0.0) -> None:
        """End it as `kill` does, and close its pipes."""
        self.kill(grace)
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()


def describe_exit(code: int) -> str:
    """An exit code in words: `exit code 3`, `signal 11 (SIGSEGV)`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def keep_exit_codes() -> None:
    """Let this process see how its children end.

    A Ray worker whose cluster reaps orphans ignores SIGCHLD, set behind Python's back: then the kernel throws every
    exit code away and `Popen` makes 0 of it.  `signal.signal` is for main threads only, hence the C library's.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    before = libc.signal(signal.SIGCHLD, 0)
    if before not in (None, 0, 1):  # neither the default nor ignored: somebody's handler
        libc.signal(signal.SIGCHLD, before)


def be_killed_first() -> None:
    """Have the kernel take this process before others of the user when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when the thread that started it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
