"""One writer at a time in a run directory, on one host or on several that share it.

    <run>/writer.lock     who writes the run now; gone when nobody does

On one host the lock is flock's, which the kernel drops when its holder dies, whatever killed it.  File systems that
hosts share often keep flock to each host, and there a dead writer's pid says nothing: so a writer also touches the file
every few seconds, and whoever finds one of another host (or of another container) watches it for a while.  A file that
is not touched in that time has no living writer, or one that was stopped: such a one asks before each write whether the
file is still its own (`RunLock.check`), and writes nothing where it is not.
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

NAME = "writer.lock"
BEAT_SECONDS = 5.0  # a living writer touches its file so often
WATCH_SECONDS = 30.0  # six beats, and what a network file system may hide of one
RECENT_SECONDS = 60.0  # so, and hosts whose clocks differ


class Busy(Exception):
    """Somebody else writes the run; the text is a clause that says who."""


class Lost(Exception):
    """The lock is no longer its holder's; the text is a clause that says whose it is."""


class RunLock:
    """A held lock.  `release` twice does nothing.  `inherited`: it was another host's, which showed no sign of life."""

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
                self.check()  # or another's file would look alive for as long as this process lives
                os.utime(self.path)
            except Lost:
                return
            except OSError:  # a network that is away for a while
                continue

    def check(self) -> None:
        """Lost, where another process has taken the lock; OSError where that cannot be seen.  To be asked before each
        write.  The file is opened anew, since network file systems show another host's writes only then."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Lost(f"its {NAME} was removed, by another writer that has ended or by hand") from None
        try:
            holder = _parsed(os.pread(descriptor, 4096, 0))
        finally:
            os.close(descriptor)
        if holder.get("nonce") != self._nonce:
            raise Lost(f"{_whose(holder)} writes this run now")

    def release(self) -> None:
        """Let the next writer in, and leave nothing behind."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        self._over.set()
        with contextlib.suppress(OSError, Lost):
            self.check()
            if _same_file(self.path, descriptor):
                self.path.unlink()
        os.close(descriptor)


def acquire(
    folder: Path, *, watch_s: float | None = None, waiting: Callable[[str], None] = lambda text: None
) -> RunLock:
    """The lock of a run directory.  Busy says who has it; OSError where the folder cannot be written.

    `waiting(text)` is called where a file of another host has to be watched, for at most `watch_s` seconds (default:
    WATCH_SECONDS).
    """
    path = folder / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _flock(descriptor, path)
            if not _same_file(path, descriptor):  # its holder let go, and removed it, just now
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
    """Who writes a run directory now, as a clause; "" where nobody does.  Takes no lock, and waits for nothing: of a
    writer on another host a touch within RECENT_SECONDS says that it lives."""
    path = folder / NAME
    try:
        found = _parsed(path.read_bytes()[:4096])
        age = time.time() - path.stat().st_mtime
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
        raise Busy(_whose(_read(descriptor))) from None
    except OSError:  # a file system without flock: pid and beats alone decide
        holder = _read(descriptor)
        if holder.get("place") == _place() and _lives(holder):
            raise Busy(_whose(holder)) from None


def _wait_for_silence(descriptor: int, watch_s: float, waiting: Callable[[str], None]) -> bool:
    """Return once the file's last holder is known to be gone.  Here: at once, for it lost flock by its death; elsewhere
    (True) it may also have been stopped."""
    holder = _read(descriptor)
    if not holder or holder.get("place") == _place():
        return False
    first, end = os.stat(descriptor).st_mtime_ns, time.monotonic() + watch_s
    waiting(f"watches for up to {watch_s:g} s whether {_whose(holder)} still lives")
    while time.monotonic() < end:
        time.sleep(min(0.5, watch_s / 4))
        os.lseek(descriptor, 0, os.SEEK_SET)
        if os.stat(descriptor).st_mtime_ns != first or _read(descriptor) != holder:
            raise Busy(_whose(holder))
    return True


def _same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _write(descriptor: int) -> str:
    """Say in the file whose it is; returns what only this holder's says."""
    nonce = secrets.token_hex(8)
    told = {
        "pid": os.getpid(),
        "begun": _begun(os.getpid()),
        "host": socket.gethostname(),
        "place": _place(),
        "nonce": nonce,
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(told).encode(), 0)
    os.fsync(descriptor)  # a network file system shows it to other hosts only then
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
    """Within it a pid means one process: this boot of this host, and the namespace that counts the pids."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _begun(pid: int) -> str:
    """When a process began, in the kernel's ticks: a pid is used again."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    return ""


def _lives(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    return isinstance(pid, int) and _begun(pid) != "" and _begun(pid) == holder.get("begun")


def _whose(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder.get('host')}" if holder.get("pid") else "another process"
