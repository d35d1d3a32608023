"""One writer at a time in a run directory, on one host or on several that share it.

    <run>/writer.lock     who writes the run now; gone when nobody does

On one host the lock is flock's, which the kernel drops when its holder dies, whatever killed it.  File systems that
hosts share often keep flock to each host, and there a dead writer's pid says nothing: so a writer also touches the file
every few seconds, and whoever finds one of another host (or of another container) watches it for a while.  A file that
is not touched in that time has no living writer.
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


class Busy(Exception):
    """Somebody else writes the run; the text is a clause that says who."""


class RunLock:
    """A held lock.  `release` twice does nothing."""

    def __init__(self, path: Path, descriptor: int):
        self.path = path
        self._descriptor: int | None = descriptor
        self._over = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Let the next writer in, and leave nothing behind."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        self._over.set()
        with contextlib.suppress(OSError):
            if _same_file(self.path, descriptor):
                self.path.unlink()
        os.close(descriptor)


def acquire(
    folder: Path, *, watch_s: float = WATCH_SECONDS, waiting: Callable[[str], None] = lambda text: None
) -> RunLock:
    """The lock of a run directory.  Busy says who has it; OSError where the folder cannot be written.

    `waiting(text)` is called where a file of another host has to be watched, for at most `watch_s` seconds.
    """
    path = folder / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _flock(descriptor, path)
            if not _same_file(path, descriptor):  # its holder let go, and removed it, just now
                os.close(descriptor)
                continue
            _wait_for_silence(descriptor, watch_s, waiting)
            _write(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return RunLock(path, descriptor)


def _flock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy(_whose(_read(descriptor))) from None
    except OSError:  # a file system without flock: pid and beats alone decide
        holder = _read(descriptor)
        if holder.get("place") == _place() and _lives(holder):
            raise Busy(_whose(holder)) from None


def _wait_for_silence(descriptor: int, watch_s: float, waiting: Callable[[str], None]) -> None:
    """Return once the file's last holder is known to be gone.  Here: at once, for it lost flock by its death."""
    holder = _read(descriptor)
    if not holder or holder.get("place") == _place():
        return
    first, end = os.stat(descriptor).st_mtime_ns, time.monotonic() + watch_s
    waiting(f"watches for up to {watch_s:g} s whether {_whose(holder)} still lives")
    while time.monotonic() < end:
        time.sleep(min(0.5, watch_s / 4))
        os.lseek(descriptor, 0, os.SEEK_SET)
        if os.stat(descriptor).st_mtime_ns != first or _read(descriptor) != holder:
            raise Busy(_whose(holder))


def _same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _write(descriptor: int) -> None:
    told = {
        "pid": os.getpid(),
        "begun": _begun(os.getpid()),
        "host": socket.gethostname(),
        "place": _place(),
        "nonce": secrets.token_hex(4),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(told).encode(), 0)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
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
