"""One writer at a time in a run directory, on one host or on several hosts that share it.

    <run>/writer.lock     which process writes the run now; absent when none does

On one host the lock is an flock, which the kernel releases when its holder dies, for whatever reason.  Shared file
systems often apply flock per host, and across hosts the pid of a dead writer means nothing.  So a writer also touches
the file every few seconds, and a process that finds the file of another host (or container) watches it for a while.  A
file that is not touched in that time has no living writer, or one that was stopped.  A stopped writer that continues
checks before each write whether it still owns the file (`RunLock.check`), and writes nothing if it does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.errors import FarmSignal, Message
from farm.process import host, procfs

NAME = "writer.lock"
BEAT_SECONDS = 5.0  # a living writer touches its file this often
WATCH_SECONDS = 30.0  # six beats, a margin for the delays of a network file system
RECENT_SECONDS = 60.0  # the same, plus a margin for hosts whose clocks differ


class RunBusy(FarmSignal):
    """Another process writes the run; the text is a clause that names it."""


class RunLockLost(FarmSignal):
    """This process no longer owns the lock; the text is a `Message`, a clause that names the owner."""


class RunLock:
    """A held lock.  A second `release` does nothing.  `inherited`: taken from a host without a sign of life."""

    def __init__(self, path: Path, descriptor: int, nonce: str, inherited: bool = False):
        self.path = path
        self.inherited = inherited
        self._nonce = nonce
        self._descriptor: int | None = descriptor
        self._over = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                self.check()  # otherwise this process would keep another writer's file looking alive
                os.utime(self.path)
            except RunLockLost:
                return
            except OSError:  # the network is down for a while
                continue

    def check(self) -> None:
        """RunLockLost if another process has taken the lock; OSError if that cannot be determined.  Call it before each
        write.  It reopens the file, because network file systems show another host's writes only then."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise RunLockLost(
                Message(
                    f"the file {NAME} of this run was removed, either by another writer that has ended or by hand",
                    id="store-lock-removed",
                )
            ) from None
        try:
            holder = _parsed(os.pread(descriptor, 4096, 0))
        finally:
            os.close(descriptor)
        if holder.get("nonce") != self._nonce:
            raise RunLockLost(Message(f"{_whose(holder)} is writing this run now", id="store-lock-taken"))

    def release(self) -> None:
        """Let the next writer in and remove the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        self._over.set()
        with contextlib.suppress(OSError, RunLockLost):
            self.check()
            if _same_file(self.path, descriptor):
                self.path.unlink()
        os.close(descriptor)


def acquire(
    folder: Path, *, watch_s: float | None = None, waiting: Callable[[str], None] = lambda text: None
) -> RunLock:
    """The lock of a run directory.  RunBusy names its owner; OSError if the folder cannot be written.

    `waiting(text)` is called if the file of another host has to be watched, for at most `watch_s` seconds (default:
    WATCH_SECONDS).
    """
    path = folder / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:  # closed to other users, because whoever can open a file can lock it
            _flock(descriptor, path)
            if not _same_file(path, descriptor):  # its holder has just released and removed it
                os.close(descriptor)
                continue
            inherited = _wait_for_silence(descriptor, WATCH_SECONDS if watch_s is None else watch_s, waiting)
            nonce = _write(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return RunLock(path, descriptor, nonce, inherited)


def holder(folder: Path) -> str:
    """Which process writes a run directory now, as a clause; "" if none does.  Takes no lock and does not wait.  A
    writer on another host counts as alive if it touched the file within RECENT_SECONDS."""
    path = folder / NAME
    try:
        found = _parsed(path.read_bytes()[:4096])
        age = time.time() - path.stat().st_mtime
    except PermissionError:
        with contextlib.suppress(OSError):
            return "a process of another user" if abs(time.time() - path.stat().st_mtime) < RECENT_SECONDS else ""
        return ""
    except OSError:
        return ""
    if not found:
        return ""
    alive = _lives(found) if found.get("place") == _place() else abs(age) < RECENT_SECONDS
    return _whose(found) if alive else ""


def _flock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunBusy(_whose(_read(descriptor))) from None
    except OSError:  # a file system without flock: only pid and beats decide
        holder = _read(descriptor)
        if holder.get("place") == _place() and _lives(holder):
            raise RunBusy(_whose(holder)) from None


def _wait_for_silence(descriptor: int, watch_s: float, waiting: Callable[[str], None]) -> bool:
    """Return once the file's last holder is known to be gone.  On this host: at once, because its death released the
    flock.  On another host (True) it may also have been stopped."""
    holder = _read(descriptor)
    if not holder or holder.get("place") == _place():
        return False
    first, end = os.stat(descriptor).st_mtime_ns, time.monotonic() + watch_s
    waiting(f"watching for up to {watch_s:g} s whether {_whose(holder)} is still alive")
    while time.monotonic() < end:
        time.sleep(min(0.5, watch_s / 4))
        os.lseek(descriptor, 0, os.SEEK_SET)
        if os.stat(descriptor).st_mtime_ns != first or _read(descriptor) != holder:
            raise RunBusy(_whose(holder))
    return True


def _same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _write(descriptor: int) -> str:
    """Write the owner into the file; returns the nonce that identifies this holder."""
    nonce = secrets.token_hex(8)
    owner = {
        "pid": os.getpid(),
        "begun": procfs.started(os.getpid()),
        "host": socket.gethostname(),
        "place": _place(),
        "nonce": nonce,
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    os.fsync(descriptor)  # a network file system shows it to other hosts only after this
    return nonce


def _read(descriptor: int) -> dict[str, Any]:
    try:
        return _parsed(os.pread(descriptor, 4096, 0))
    except OSError:
        return {}


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _place() -> str:
    """The scope in which a pid identifies one process: this boot of this host, and the pid namespace."""
    return " ".join(part for part in (socket.gethostname(), host.boot(), host.pid_namespace()) if part)


def _lives(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    return isinstance(pid, int) and procfs.started(pid) == (holder.get("begun") or None)


def _whose(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder.get('host')}" if holder.get("pid") else "another process"
