"""One farm at a time on a physical device: a file lock that the kernel drops when its holder dies.

    <FARM_LOCKS, else /tmp/farm-locks>/<device's uuid>.lock     who holds it, for people; the lock itself is flock's

The folder belongs to the host, not to a user: like /tmp it is writable for all, and only an owner may remove a file.
A file is never removed: whoever waits for it has it open, and would then hold a lock that nobody else sees.  Children
do not inherit it (Python's descriptors are closed on exec), so a stray process cannot keep a device locked; whether one
is still on the device is for the telemetry to see.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.deadline import Deadline
from farm.errors import LockRefused

#: How long a device is waited for where no run says (`--wait`).  FARM_LOCK_WAIT (seconds) overrides both.
WAIT_SECONDS = 45.0
LOOK_SECONDS = 0.1


def folder() -> Path:
    """Where this host's locks are."""
    return Path(os.environ.get("FARM_LOCKS") or Path("/tmp", "farm-locks"))


def wait_seconds(asked: float | None = None) -> float:
    """How long to wait: by the environment, else as `asked`."""
    usual = WAIT_SECONDS if asked is None else asked
    try:
        return max(0.0, float(os.environ.get("FARM_LOCK_WAIT", usual)))
    except ValueError:
        return usual


class DeviceLock:
    """A held lock.  `release` twice does nothing."""

    def __init__(self, path: Path, descriptor: int):
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


def acquire(
    device: str,
    holder: dict[str, Any],
    wait_s: float,
    *,
    waiting: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> DeviceLock:
    """The lock of a device by its uuid; `holder` ({"run": ...}) is written into it beside pid and user.

    Waits up to `wait_s` seconds; `waiting(text)` is called once if it has to, `stop()` ends it early.  Refused says in
    one sentence who has the device, or why the folder cannot be used.
    """
    path = folder() / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', device)[:150]}.lock"
    descriptor = _open(path)
    deadline = Deadline(wait_s)
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as error:
                raise LockRefused(
                    f"{path}: this file system does not support locks ({error.strerror}); "
                    "set FARM_LOCKS to a local folder"
                ) from None
            if not told:
                waiting(f"waiting up to {wait_s:g} s for {_whose(descriptor)}")
                told = True
            if stop():
                raise LockRefused("the device's actor is stopping")
            if deadline.expired:
                raise LockRefused(
                    f"the device is in use by {_whose(descriptor)} after a wait of {wait_s:g} s for {path}; "
                    "to wait longer, give farm run --wait SECONDS, or set FARM_LOCK_WAIT (seconds)",
                    busy=True,
                )
            time.sleep(min(LOOK_SECONDS, deadline.remaining))
        _write(descriptor, holder)
    except BaseException:
        os.close(descriptor)
        raise
    return DeviceLock(path, descriptor)


def _open(path: Path) -> int:
    """A descriptor of the lock file, which is created if it does not exist.  LockRefused if that fails."""
    try:
        _make_folder(path.parent)
        for _ in range(3):
            # Without O_CREAT: in a sticky folder the kernel refuses that for a file of another user
            # (fs.protected_regular).  Without following links: anybody may put one there.
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            _make_file(path)
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise LockRefused(
            f"{path}: the device's lock cannot be opened ({error.strerror or error}); make the folder writable for "
            "all users, or set FARM_LOCKS to one writable folder for all users"
        ) from None


def _make_folder(place: Path) -> None:
    if not place.is_dir():
        with contextlib.suppress(FileExistsError):
            place.mkdir(parents=True)
            place.chmod(0o1777)


def _make_file(path: Path) -> None:
    """A file that all may lock and write, in one step: with its final rights before it has its name."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".lock-")
    try:
        os.fchmod(descriptor, 0o666)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(descriptor)
        Path(temporary).unlink()


def _write(descriptor: int, holder: dict[str, Any]) -> None:
    text = json.dumps({"pid": os.getpid(), "user": _user(), **holder})
    with contextlib.suppress(OSError):  # on a full disk the lock still works, without the holder's name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _whose(descriptor: int) -> str:
    """Who holds the lock, according to its content, which anybody can write, so it is only printed."""
    try:
        said = json.loads(os.pread(descriptor, 4096, 0))
        run = f", run {str(said['run'])[:100]!r}" if said.get("run") else ""
        return f"another farm (pid {int(said['pid'])}, user {str(said['user'])[:40]!r}{run})"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "another farm (holder unknown: its lock file does not name it)"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
